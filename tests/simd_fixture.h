// Every test of vector code runs for each instruction set that this build holds.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cpu/runs_on.h"
#include "simd_ops.h"

namespace tilewise::cpu {

// Of one instruction set; `ops` is code for it.
struct SimdCode {
  Isa isa;
  SimdOps (*ops)();
  const char* name = instruction_set(isa).name;
};

inline std::vector<SimdCode> code_of_this_build() {
  return {
      {Isa::baseline, portable_ops}, {Isa::baseline, sixteen_lanes_ops, "sixteen_lanes"},
#ifdef TILEWISE_X86
      {Isa::avx2, avx2_ops},         {Isa::avx512, avx512_ops},
#endif
#ifdef TILEWISE_ARM
      {Isa::neon, neon_ops},         {Isa::sve128, sve128_ops},
      {Isa::sve256, sve256_ops},     {Isa::sve512, sve512_ops},
#endif
  };
}

// Skipped where the machine lacks the instructions.
class SimdTest : public testing::TestWithParam<SimdCode> {
 protected:
  void SetUp() override {
    Text why_not;
    if (!instruction_set(GetParam().isa).runs_on(0, why_not)) GTEST_SKIP() << why_not.chars;
    ops = GetParam().ops();
  }

  SimdOps ops;
  std::mt19937_64 random{1};

  float number(float lo = -1, float hi = 1) { return std::uniform_real_distribution<float>(lo, hi)(random); }
  std::vector<float> numbers(int64_t count) {
    std::vector<float> x(count);
    for (float& value : x) value = number();
    return x;
  }
  // Small whole numbers: sums of their products are exact in any order.
  std::vector<float> whole_numbers(int64_t count) {
    std::vector<float> x(count);
    for (float& value : x) value = static_cast<float>(static_cast<int64_t>(random() % 17) - 8);
    return x;
  }
};

inline std::string isa_name(const testing::TestParamInfo<SimdCode>& info) { return info.param.name; }

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline float float_of(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

// Bytes that end where a page without access begins, after a page without access.
class GuardedBytes {
 public:
  explicit GuardedBytes(int64_t bytes) : page_(sysconf(_SC_PAGESIZE)), inner_((bytes + page_ - 1) / page_ * page_) {
    base_ = static_cast<char*>(mmap(nullptr, inner_ + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + page_, inner_, PROT_READ | PROT_WRITE);
    begin_ = base_ + page_ + inner_ - bytes;
  }
  ~GuardedBytes() { munmap(base_, inner_ + 2 * page_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  char* data() const { return begin_; }

 private:
  int64_t page_, inner_;
  char *base_, *begin_;
};

}  // namespace tilewise::cpu
