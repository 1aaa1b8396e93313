// exp2 and tanh over all that they promise.
#include "simd_fixture.h"

namespace tilewise::cpu {
namespace {

using Function = void (*)(const float*, float*);

class SimdMath : public SimdTest {
 protected:
  float at(Function f, float x) {
    std::vector<float> in(ops.lanes, x), out(ops.lanes);
    f(in.data(), out.data());
    for (float y : out) EXPECT_EQ(bits_of(y), bits_of(out[0])) << x;
    return out[0];
  }
  float multiple_at(float c, float x) {
    std::vector<float> in(ops.lanes, x), out(ops.lanes);
    ops.exp2_of_multiple(c, in.data(), out.data());
    return out[0];
  }
};

TEST_P(SimdMath, Exp2KeepsItsBound) {
  double worst = 0;
  for (int i = -125 << 12; i < 127 << 12; ++i) {
    const float from = static_cast<float>(i) * 0x1p-12f + 0x1.3p-14f;
    worst = std::max(worst, std::fabs(at(ops.exp2, from) / std::exp2(double{from}) - 1));
  }
  EXPECT_LE(worst, ops.exp2_error);
}

TEST_P(SimdMath, Exp2IsExactAtWholeNumbers) {
  for (int n = -125; n < 127; ++n) EXPECT_EQ(at(ops.exp2, static_cast<float>(n)), std::ldexp(1.f, n));
}

// Not 2^-125 for all of them, and no subnormal number in between.
TEST_P(SimdMath, SmallPowersAre0) {
  for (float x : {-126.f, -127.f, -150.f, -1000.f, -1e7f, -1e10f, -1e30f, -3.4028235e38f, -INFINITY}) {
    EXPECT_EQ(bits_of(at(ops.exp2, x)), 0u) << x;
    EXPECT_EQ(bits_of(at(ops.exp, x)), 0u) << x;
    for (float c : {1.442695f, 1.f, 30.f}) EXPECT_EQ(bits_of(multiple_at(c, x)), 0u) << c << " " << x;
  }
  for (float x = -127; x < -124; x += 0x1p-12f) {
    for (float y : {at(ops.exp2, x), at(ops.exp, x / 1.442695f), multiple_at(1, x)})
      EXPECT_TRUE(y == 0 ? x < -125 : std::isnormal(y)) << x;
  }
}

TEST_P(SimdMath, Exp2OfMultipleKeepsItsBound) {
  for (float c : {0.125f, 1.442695f, 7.f})
    for (int i = -125 << 8; i < 126 << 8; ++i) {
      const float from = (static_cast<float>(i) * 0x1p-8f + 0x1.3p-10f) / c;
      const double bound = ops.exp2_error + std::fabs(from * c) * ops.exp_error_growth;
      ASSERT_LE(std::fabs(multiple_at(c, from) / std::exp2(double{from} * double{c}) - 1), bound) << c << " " << from;
    }
}

TEST_P(SimdMath, ExpKeepsItsBound) {
  for (int i = -86 << 12; i < 88 << 12; ++i) {
    const float from = static_cast<float>(i) * 0x1p-12f + 0x1.3p-14f;
    const double bound = ops.exp2_error + std::fabs(from) * ops.exp_error_growth;
    ASSERT_LE(std::fabs(at(ops.exp, from) / std::exp(double{from}) - 1), bound) << from;
  }
}

// Quiet and signalling, of both signs, with payloads.
TEST_P(SimdMath, NanStaysNan) {
  for (uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7fc00001u, 0xffffffffu, 0x7f800001u, 0xff8001ffu})
    for (Function f : {ops.exp2, ops.exp, ops.tanh}) {
      const std::vector<float> in(ops.lanes, float_of(bits));
      std::vector<float> out(ops.lanes);
      f(in.data(), out.data());
      for (float y : out) EXPECT_TRUE(std::isnan(y)) << std::hex << bits;
    }
}

TEST_P(SimdMath, TanhIsWithinTwoUlp) {
  for (uint32_t bits = 0; bits < bits_of(20.f); bits += 1009)
    for (float x : {float_of(bits), -float_of(bits)}) {
      const double want = std::tanh(double{x});
      const float nearest = std::fabs(static_cast<float>(want));
      const double ulp = double{std::nextafter(nearest, 2.f)} - nearest;
      ASSERT_LE(std::fabs(at(ops.tanh, x) - want), 2 * ulp) << std::hexfloat << x;
    }
}

TEST_P(SimdMath, TanhAtTheEnds) {
  for (float x : {10.f, 89.f, 1e30f, 3.4e38f, INFINITY}) {
    EXPECT_EQ(at(ops.tanh, x), 1) << x;
    EXPECT_EQ(at(ops.tanh, -x), -1) << x;
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, SimdMath, testing::ValuesIn(code_of_this_build()), isa_name);

}  // namespace
}  // namespace tilewise::cpu
