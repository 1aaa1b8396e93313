// Every trait against scalar code.
#include "simd_fixture.h"

namespace tilewise::cpu {
namespace {

class SimdTraits : public SimdTest {
 protected:
  // Values whose comparisons are delicate: both zeros, infinities, NaN, equal pairs, subnormals.
  std::vector<float> delicate() {
    return {0.f, -0.f, 1.f, -1.f, 1.f, INFINITY, -INFINITY, NAN, 1e-42f, -1e-42f, 3.4e38f, -3.4e38f, 2.5f, -7.f, NAN};
  }
};

float scalar(const std::string& name, float a, float b) {
  const auto mask = [](bool yes) { return float_of(yes ? ~0u : 0); };
  if (name == "add") return a + b;
  if (name == "sub") return a - b;
  if (name == "mul") return a * b;
  if (name == "div") return a / b;
  if (name == "max") return a > b ? a : b;
  if (name == "min") return a < b ? a : b;
  if (name == "equal") return mask(a == b);
  if (name == "above") return mask(a > b);
  if (name == "below") return mask(a < b);
  if (name == "not_below_equal") return mask(!(a <= b));
  if (name == "both") return mask(std::isnan(a) && std::isnan(b));
  if (name == "either") return mask(std::isnan(a) || std::isnan(b));
  if (name == "without") return mask(std::isnan(a) && !std::isnan(b));
  if (name == "keep_if") return std::isnan(a) ? b : 0;
  if (name == "keep_unless") return std::isnan(a) ? 0 : b;
  ADD_FAILURE() << "no such operation: " << name;
  return 0;
}

bool is_arithmetic(const std::string& name) { return name == "add" || name == "sub" || name == "mul" || name == "div"; }

TEST_P(SimdTraits, OperationsOfTwo) {
  const auto values = delicate();
  for (const auto& two : ops.two)
    for (float a : values)
      for (size_t first = 0; first < values.size(); ++first) {
        std::vector<float> x(ops.lanes, a), y(ops.lanes), got(ops.lanes);
        for (int i = 0; i < ops.lanes; ++i) y[i] = values[(first + i) % values.size()];
        two.apply(x.data(), y.data(), got.data());
        for (int i = 0; i < ops.lanes; ++i) {
          const float want = scalar(two.name, a, y[i]);
          if (std::isnan(want) && is_arithmetic(two.name)) {
            EXPECT_TRUE(std::isnan(got[i])) << two.name << ' ' << a << ' ' << y[i];
          } else {
            EXPECT_EQ(bits_of(got[i]), bits_of(want)) << two.name << ' ' << a << ' ' << y[i];
          }
        }
      }
}

TEST_P(SimdTraits, FmaAndFms) {
  for (int round = 0; round < 1000; ++round) {
    const auto a = numbers(ops.lanes), b = numbers(ops.lanes), c = numbers(ops.lanes);
    std::vector<float> sum(ops.lanes), difference(ops.lanes);
    ops.fma(a.data(), b.data(), c.data(), sum.data());
    ops.fms(a.data(), b.data(), c.data(), difference.data());
    for (int i = 0; i < ops.lanes; ++i) {
      EXPECT_NEAR(sum[i], double{a[i]} * b[i] + c[i], 0x1p-23);
      EXPECT_NEAR(difference[i], double{a[i]} * b[i] - c[i], 0x1p-23);
    }
  }
}

TEST_P(SimdTraits, Nearest) {
  for (float x : {0.f, 0.5f, 1.5f, -0.5f, -1.5f, 2.5000002f, 126.49f, -125.f, -1000.5f, 4194303.f}) {
    std::vector<float> a(ops.lanes, x), whole(ops.lanes);
    std::vector<int32_t> integer(ops.lanes);
    ops.nearest(a.data(), whole.data(), integer.data());
    for (int i = 0; i < ops.lanes; ++i) {
      EXPECT_EQ(whole[i], std::nearbyint(x)) << x;
      EXPECT_EQ(integer[i], static_cast<int32_t>(std::nearbyint(x))) << x;
    }
  }
}

TEST_P(SimdTraits, SelectAndAny) {
  const float all = float_of(~0u);
  const auto yes = numbers(ops.lanes), no = numbers(ops.lanes);
  for (int chosen = 0; chosen < 1 << ops.lanes; ++chosen) {
    std::vector<float> mask(ops.lanes), got(ops.lanes);
    for (int i = 0; i < ops.lanes; ++i) mask[i] = chosen >> i & 1 ? all : 0;
    ops.select(mask.data(), yes.data(), no.data(), got.data());
    for (int i = 0; i < ops.lanes; ++i) EXPECT_EQ(got[i], chosen >> i & 1 ? yes[i] : no[i]);
    EXPECT_EQ(ops.any(mask.data()), chosen != 0);
  }
  EXPECT_FALSE(ops.any_of_none());
}

TEST_P(SimdTraits, IsNan) {
  for (float x : delicate()) {
    std::vector<float> a(ops.lanes, x), got(ops.lanes);
    ops.is_nan(a.data(), got.data());
    for (float mask : got) EXPECT_EQ(bits_of(mask), std::isnan(x) ? ~0u : 0u);
  }
}

TEST_P(SimdTraits, Transpose) {
  const int n = ops.lanes;
  std::vector<float> square(n * n);
  for (int i = 0; i < n * n; ++i) square[i] = static_cast<float>(i);
  ops.transpose(square.data());
  for (int i = 0; i < n; ++i)
    for (int j = 0; j < n; ++j) EXPECT_EQ(square[i * n + j], static_cast<float>(j * n + i));
}

INSTANTIATE_TEST_SUITE_P(Isa, SimdTraits, testing::ValuesIn(code_of_this_build()), isa_name);

}  // namespace
}  // namespace tilewise::cpu
