// Loads, stores and conversions of every element type: all 16-bit values, ties, and no byte outside the elements.
#include "simd_fixture.h"

namespace tilewise::cpu {
namespace {

// A 16-bit float format, by arithmetic on doubles.
struct Format {
  int exponent_bits, fraction_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint16_t infinity() const { return ((1 << exponent_bits) - 1) << fraction_bits; }
  double value(uint16_t bits) const {
    const int exponent = (bits & 0x7fff) >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1);
    double magnitude = std::ldexp(fraction, 1 - bias() - fraction_bits);
    if (exponent > 0) magnitude = std::ldexp((1 << fraction_bits) + fraction, exponent - bias() - fraction_bits);
    if ((bits & 0x7fff) == infinity()) magnitude = INFINITY;
    if ((bits & 0x7fff) > infinity()) magnitude = NAN;
    return bits & 0x8000 ? -magnitude : magnitude;
  }
  // To nearest, ties to even: nearbyint's default.
  uint16_t nearest(float x) const {
    const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    const double magnitude = std::fabs(double{x});
    if (magnitude == 0) return sign;
    if (std::isinf(magnitude)) return sign | infinity();
    const int exponent = std::max(std::ilogb(magnitude), 1 - bias());
    const double steps = std::nearbyint(std::ldexp(magnitude, fraction_bits - exponent));
    const int64_t bits = static_cast<int64_t>(steps) + (int64_t{exponent + bias() - 1} << fraction_bits);
    return sign | static_cast<uint16_t>(std::min<int64_t>(bits, infinity()));
  }
};

constexpr Format kHalf{5, 10}, kBfloat16{8, 7};

class SimdElements : public SimdTest {
 protected:
  void widens_every_value(const ElementOps& element, const Format& format) {
    std::vector<float> got(ops.lanes);
    for (int first = 0; first < 65536; first += ops.lanes) {
      std::vector<uint16_t> from(ops.lanes);
      for (int i = 0; i < ops.lanes; ++i) from[i] = first + i;
      element.load(from.data(), got.data());
      for (int i = 0; i < ops.lanes; ++i) {
        const double want = format.value(from[i]);
        ASSERT_TRUE(std::isnan(want) ? std::isnan(got[i]) : bits_of(got[i]) == bits_of(static_cast<float>(want)))
            << std::hex << from[i];
      }
    }
  }

  void narrows(const ElementOps& element, const Format& format, const std::vector<float>& from) {
    std::vector<uint16_t> got(ops.lanes);
    for (size_t first = 0; first + ops.lanes <= from.size(); first += ops.lanes) {
      element.store(got.data(), &from[first]);
      for (int i = 0; i < ops.lanes; ++i) {
        const float x = from[first + i];
        ASSERT_TRUE(std::isnan(x) ? std::isnan(format.value(got[i])) : got[i] == format.nearest(x))
            << std::hexfloat << x << std::hex << ' ' << got[i];
      }
    }
  }

  // Each value, the middle between it and the next, and the floats beside both.
  static std::vector<float> ties(const Format& format) {
    std::vector<float> all;
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const double value = format.value(bits), next = format.value(bits + 1);
      if (!std::isfinite(value)) continue;
      const double step = std::isfinite(next) ? next - value : value - format.value(bits - 1);
      for (double x : {value, value + step / 2}) {
        const float at = static_cast<float>(x);
        for (float y : {std::nextafter(at, -INFINITY), at, std::nextafter(at, INFINITY)}) all.push_back(y);
      }
    }
    return all;
  }

  std::vector<float> any_bits() {
    std::vector<float> all(1 << 20);
    for (float& x : all) x = float_of(static_cast<uint32_t>(random()));
    return all;
  }

  // load_first and store_first beside a page without access.
  void keeps_to_its_elements(const ElementOps& element, int64_t size) {
    for (int64_t n = 1; n < ops.lanes; ++n) {
      const GuardedBytes bytes(n * size);
      for (int64_t i = 0; i < n * size; ++i) bytes.data()[i] = static_cast<char>(i % 2 ? 0x3f : 0x40 + i);
      std::vector<char> whole(ops.lanes * size);
      std::memcpy(whole.data(), bytes.data(), n * size);
      std::vector<float> want(ops.lanes), got(ops.lanes, NAN);
      element.load(whole.data(), want.data());
      element.load_first(bytes.data(), n, got.data());
      for (int i = 0; i < ops.lanes; ++i) EXPECT_EQ(bits_of(got[i]), bits_of(i < n ? want[i] : 0)) << n << ' ' << i;
      if (!element.store) continue;
      std::memset(bytes.data(), 0x55, n * size);
      element.store_first(bytes.data(), want.data(), n);
      EXPECT_EQ(std::memcmp(bytes.data(), whole.data(), n * size), 0) << n;
      std::vector<char> room(ops.lanes * size, 0x55);
      element.store_first(room.data(), want.data(), n);
      for (int64_t i = n * size; i < ops.lanes * size; ++i) EXPECT_EQ(room[i], 0x55) << n << ' ' << i;
    }
  }

  void moves_rows(const ElementOps& element, int64_t size) {
    for (int64_t n = 1; n <= 4 * ops.lanes + 1; ++n) {
      const GuardedBytes bytes(n * size);
      const auto values = whole_numbers(n + ops.lanes);
      element.write_row(values.data(), n, 2, bytes.data());
      const int64_t padded = (n + ops.lanes - 1) / ops.lanes * ops.lanes;
      std::vector<float> back(padded + 1, NAN);
      element.read_row(bytes.data(), n, 0.25, back.data());
      for (int64_t i = 0; i < padded; ++i) EXPECT_EQ(back[i], i < n ? values[i] / 2 : 0) << n << ' ' << i;
      EXPECT_TRUE(std::isnan(back[padded])) << n;
    }
  }
};

TEST_P(SimdElements, WidensEveryHalf) { widens_every_value(ops.f16, kHalf); }
TEST_P(SimdElements, WidensEveryBfloat16) { widens_every_value(ops.bf16, kBfloat16); }
TEST_P(SimdElements, RoundsTiesOfHalf) { narrows(ops.f16, kHalf, ties(kHalf)); }
TEST_P(SimdElements, RoundsTiesOfBfloat16) { narrows(ops.bf16, kBfloat16, ties(kBfloat16)); }
TEST_P(SimdElements, RoundsAnyFloatToHalf) { narrows(ops.f16, kHalf, any_bits()); }
TEST_P(SimdElements, RoundsAnyFloatToBfloat16) { narrows(ops.bf16, kBfloat16, any_bits()); }

TEST_P(SimdElements, ReadsBooleans) {
  std::vector<uint8_t> from(ops.lanes);
  for (int i = 0; i < ops.lanes; ++i) from[i] = i % 3 == 2 ? 255 : i % 3;
  std::vector<float> got(ops.lanes);
  ops.boolean.load(from.data(), got.data());
  for (int i = 0; i < ops.lanes; ++i) EXPECT_EQ(got[i], from[i]);
}

TEST_P(SimdElements, FirstKeepsToItsElements) {
  keeps_to_its_elements(ops.f32, 4);
  keeps_to_its_elements(ops.f16, 2);
  keeps_to_its_elements(ops.bf16, 2);
  keeps_to_its_elements(ops.boolean, 1);
}

TEST_P(SimdElements, MovesRowsOfAnyLength) {
  moves_rows(ops.f32, 4);
  moves_rows(ops.f16, 2);
  moves_rows(ops.bf16, 2);
}

INSTANTIATE_TEST_SUITE_P(Isa, SimdElements, testing::ValuesIn(code_of_this_build()), isa_name);

}  // namespace
}  // namespace tilewise::cpu
