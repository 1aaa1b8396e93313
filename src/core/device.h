// What the machine has: read once.
#pragma once

#include <cstdint>

namespace tilewise {

struct Cpu {
  char model[64] = {};
  bool avx2 = false;    // with FMA and F16C, and enabled by the operating system
  bool avx512 = false;  // F, BW, DQ, VL
  int64_t l1_bytes = 0, l2_bytes = 0, l3_bytes = 0;
  double clock_ghz = 0;  // 0 if unknown
};

const Cpu& this_cpu();

}  // namespace tilewise
