// The processor of this machine: read once.
#pragma once

#include <cstdint>

namespace tilewise {

// What kernels ask of an x86-64 processor beyond the baseline; all false on any other.
struct X86 {
  bool avx2 = false, fma = false, f16c = false;
  bool avx512f = false, avx512bw = false, avx512dq = false, avx512vl = false;
  bool keeps_ymm = false, keeps_zmm = false;  // the operating system saves these registers

  bool runs_avx2() const { return avx2 && fma && f16c && keeps_ymm; }
  bool runs_avx512() const { return runs_avx2() && avx512f && avx512bw && avx512dq && avx512vl && keeps_zmm; }
};

// The same of a 64-bit ARM processor.
struct Arm {
  bool neon = false;
  int sve_bits = 0;  // of a vector in this process; 0 without SVE
};

struct Cpu {
  char model[64] = {};
  X86 x86;
  Arm arm;
  int64_t l1_bytes = 0, l2_bytes = 0, l3_bytes = 0;
  double clock_ghz = 0;  // 0 if unknown
};

const Cpu& this_cpu();

// For tests: what this_cpu() says from now on. Not while another thread may ask.
void pretend(const Cpu& cpu);

}  // namespace tilewise
