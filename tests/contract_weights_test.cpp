// Contract C8 at the ends of the exponential: a key of no weight, and scores whose differences fp32 cannot hold.
#include "tests/contract.h"

namespace tilewise::cases {
namespace {

// How a case makes the scores of a row differ.
enum class By : uint8_t { products, bias, lowest_bias };

// The scores of some keys lie so far below the others' that their weight is 0, though their values are huge: at the
// start, in the middle or at the end, so that a maximum is there before them or comes after them.
struct Outweighed {
  By by;
  Type type;
  int64_t first;  // of 8 keys among 300

  CaseData data() const {
    Case c;
    c.seqlen_q = 7, c.seqlen_k = 300, c.head_dim = c.value_dim = 8, c.type = type, c.scale = 1;
    c.fill = Fill::ones_value, c.dbias = by != By::products;
    if (by != By::products) c.bias = "111k";
    CaseData data(c);
    if (by == By::products) {
      data.q.each([&](int64_t b, int64_t i, int64_t h, int64_t d) { data.q.set(d == 0 ? 16 : 0, b, i, h, d); });
      data.k.each([&](int64_t b, int64_t j, int64_t h, int64_t d) { data.k.set(d == 0 ? 8 : 0, b, j, h, d); });
    }
    const double huge = type == Type::f16 ? 6e4 : 0x1p120;
    for (int64_t j = first; j < first + 8; ++j) {
      if (by == By::products) data.k.set(-8, 0, j, 0, 0);
      if (by == By::bias) data.bias.set(-1000, 0, 0, 0, j);
      if (by == By::lowest_bias) data.bias.set(-3.4028234663852886e38, 0, 0, 0, j);
      for (int64_t d = 0; d < 8; ++d) data.v.set(huge, 0, j, 0, d);
    }
    return data;
  }
};

TEST(ContractC8, AKeyOfNoWeightAddsNothing) {
  for (const By by : {By::products, By::bias, By::lowest_bias})
    for (const Type type : {Type::f32, Type::f16, Type::bf16})
      for (const int64_t first : {0, 140, 292}) {
        SCOPED_TRACE(testing::Message() << static_cast<int>(by) << " " << name_of(type) << " " << first);
        const CaseData data = Outweighed{by, type, first}.data();
        Expected expected;
        ASSERT_TRUE(expect(data, expected).ok());
        each_kernel([&](const Kernel& kernel) {
          const Outputs o = run(data, kernel);
          for (const Verdict& verdict : judge(data, expected, kernel.pass, o))
            EXPECT_TRUE(verdict.ok()) << verdict.text();
          for (int64_t i = 0; i < 7; ++i) EXPECT_NEAR(o.out.at(0, i, 0, 3), 1, 3e-6);
          if (kernel.pass == Pass::forward) return;
          for (int64_t j = first; j < first + 8; ++j) {
            EXPECT_EQ(o.dk.at(0, j, 0, 0), 0);
            EXPECT_EQ(o.dv.at(0, j, 0, 0), 0);
          }
        });
      }
}

// The maximum of a row jumps by more than any exponent: what was summed under the old one is gone, and lse is that of
// the later keys.
TEST(ContractC8, WhatALaterKeyOutweighsIsGone) {
  for (const double jump : {100., 130., 200., 1e5, 1e30}) {
    Case c;
    c.seqlen_q = 5, c.seqlen_k = 400, c.head_dim = c.value_dim = 8, c.bias = "111k", c.scale = 0.f;
    CaseData data(c);
    for (int64_t j = 0; j < 400; ++j) {
      data.bias.set(j < 350 ? 0 : jump, 0, 0, 0, j);
      for (int64_t d = 0; d < 8; ++d) data.v.set(j < 350 ? 1e36 : 2, 0, j, 0, d);
    }
    each_kernel(Pass::forward, [&](const Kernel& kernel) {
      const Outputs o = run(data, kernel);
      for (int64_t i = 0; i < 5; ++i) {
        EXPECT_NEAR(o.lse.at(0, 0, i), jump + std::log(50), 1e-6 * jump + 1e-6) << jump;
        if (jump > 104) EXPECT_NEAR(o.out.at(0, i, 0, 3), 2, 1e-6) << jump;
      }
    });
  }
}

// Weights stay below 2^24 however the scores of a row rise, so that values of 2^104 / Sk do not become infinite.
TEST(ContractC8, LargeValuesStayFinite) {
  for (const float scale : {0.125f, 1.0f, 8.0f})
    for (const double rise : {10., 23., 30., 50., 100.}) {  // every 64 keys, to base 2
      Case c;
      c.seqlen_q = 5, c.seqlen_k = 256, c.head_dim = c.value_dim = 8, c.scale = scale;
      CaseData data(c);
      data.q.each([&](int64_t b, int64_t i, int64_t h, int64_t d) { data.q.set(d == 0, b, i, h, d); });
      data.k.each([&](int64_t b, int64_t j, int64_t h, int64_t d) {
        data.k.set(d == 0 ? static_cast<double>(j / 64) * rise * std::log(2) / scale : 0, b, j, h, d);
      });
      data.v.each([&](int64_t b, int64_t j, int64_t h, int64_t d) { data.v.set(0x1p95, b, j, h, d); });
      each_kernel(Pass::forward, [&](const Kernel& kernel) {
        const Outputs o = run(data, kernel);
        for (int64_t i = 0; i < 5; ++i)
          EXPECT_NEAR(o.out.at(0, i, 0, 3) * 0x1p-95, 1, 2e-6) << "scale " << scale << ", rise " << rise;
      });
    }
}

// A cap near 0 makes every score 0: out is the mean, and nothing flows back to q and k.
TEST(ContractC8, ASoftcapOfAnySize) {
  for (const float cap : {1e-45f, 1e-39f, 2.9e-39f, 1e-30f, 1e30f, 3.4028235e38f})
    for (const Fill fill : {Fill::zero_query, Fill::normal, Fill::huge}) {
      Case c;
      c.seqlen_q = 20, c.seqlen_k = 40, c.head_dim = c.value_dim = 16, c.softcap = cap, c.fill = fill;
      SCOPED_TRACE(c.name());
      const CaseData data(c);
      Expected expected;
      ASSERT_TRUE(expect(data, expected).ok());
      each_kernel([&](const Kernel& kernel) {
        for (const Verdict& verdict : judge(data, expected, kernel.pass, run(data, kernel)))
          EXPECT_TRUE(verdict.ok()) << verdict.text();
      });
    }
}

}  // namespace
}  // namespace tilewise::cases
