// Answers that need no oracle: what random data hides, they show.
#include <bit>

#include "cpu/common/element_values.h"
#include "tests/contract.h"

namespace tilewise::cases {
namespace {

Case masked() {
  Case c;
  c.batch = 2, c.seqlen_q = 70, c.seqlen_k = 260, c.heads = 4, c.heads_kv = 2, c.head_dim = 16, c.value_dim = 260;
  c.window_left = 90, c.window_right = 40, c.used_k = {260, 199};
  return c;
}

// q = 0: all live keys weigh the same. v one-hot: out shows which they are. The contract's words decide, pair by pair.
TEST(ContractOracles, OutShowsWhichKeysWereSeen) {
  for (Case c : {masked(),
                 [] {
                   Case c = masked();
                   c.causal = true, c.window_right = kUnbounded;
                   return c;
                 }(),
                 [] {
                   Case c = masked();
                   c.chunk = 50, c.left_pad = {5, 60}, c.top_left = true;
                   return c;
                 }()}) {
    c.fill = Fill::zero_query;
    CaseData data(c);
    data.v.each([&](int64_t b, int64_t j, int64_t h, int64_t d) { data.v.set(d == j, b, j, h, d); });
    each_kernel(Pass::forward, [&](const Kernel& kernel) {
      const Outputs o = run(data, kernel);
      for (int64_t b = 0; b < 2; ++b)
        for (int64_t i = 0; i < 70; ++i) {
          int64_t seen = 0;
          for (int64_t j = 0; j < 260; ++j) seen += data.in_range(b, 0, i, j);
          for (int64_t j = 0; j < 260; ++j) {
            const double weight = data.in_range(b, 0, i, j) ? 1.0 / static_cast<double>(seen) : 0;
            ASSERT_NEAR(o.out.at(b, i, 3, j), weight, 1e-6) << "row " << i << " key " << j;
          }
        }
    });
  }
}

TEST(ContractOracles, WeightsSumToOne) {
  for (const Type type : {Type::f32, Type::f16, Type::bf16}) {
    for (const int64_t keys : {1, 64, 65, 127, 129, 4096}) {
      Case c;
      c.seqlen_q = 3, c.seqlen_k = keys, c.type = type, c.softcap = 30, c.fill = Fill::ones_value;
      const CaseData data(c);
      each_kernel(Pass::forward, [&](const Kernel& kernel) {
        const Outputs o = run(data, kernel);
        o.out.each([&](int64_t b, int64_t i, int64_t h, int64_t d) { EXPECT_NEAR(o.out.at(b, i, h, d), 1, 3e-6); });
      });
    }
  }
}

// One key: out is its value, dv is dout, and there is nothing for dq and dk.
TEST(ContractOracles, OneKey) {
  Case c;
  c.seqlen_q = c.seqlen_k = 1, c.head_dim = c.value_dim = 16;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    c.seed = seed;
    const CaseData data(c);
    each_kernel(Pass::backward, [&](const Kernel& kernel) {
      const Outputs o = run(data, kernel);
      for (int64_t d = 0; d < 16; ++d) {
        EXPECT_NEAR(o.out.at(0, 0, 0, d), data.v.at(0, 0, 0, d), 1e-6);
        EXPECT_NEAR(o.dv.at(0, 0, 0, d), data.dout.at(0, 0, 0, d), 3e-6);
        EXPECT_NEAR(o.dq.at(0, 0, 0, d), 0, 1e-5);
        EXPECT_NEAR(o.dk.at(0, 0, 0, d), 0, 1e-5);
      }
    });
  }
}

// lse is the natural logarithm of the sum of exp of the scaled scores.
TEST(ContractOracles, LseIsNatural) {
  Case c;
  c.seqlen_q = c.seqlen_k = 16;
  const CaseData data(c);
  each_kernel(Pass::forward, [&](const Kernel& kernel) {
    const Outputs o = run(data, kernel);
    for (int64_t i = 0; i < 16; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < 16; ++j) {
        double score = 0;
        for (int64_t d = 0; d < 64; ++d) score += data.q.at(0, i, 0, d) * data.k.at(0, j, 0, d) / 8;
        sum += std::exp(score);
      }
      EXPECT_NEAR(o.lse.at(0, 0, i), std::log(sum), 1e-5);
    }
  });
}

// Two keys that score 0, with values 0 and 1, against sinks far above and far below them.
TEST(ContractOracles, SinksOfAnySize) {
  Case c;
  c.seqlen_k = 2, c.head_dim = c.value_dim = 1, c.fill = Fill::zero_query, c.sink = c.dsink = true;
  CaseData data(c);
  data.v.set(0, 0, 0), data.v.set(1, 0, 1);
  data.dout.set(-3, 0, 0);
  struct {
    double sink, out, lse;
  } const rows[] = {{-INFINITY, 0.5, std::log(2.0)},
                    {0, 1 / 3.0, std::log(3.0)},
                    {1000, 0, 1000},
                    {-1000, 0.5, std::log(2.0)},
                    {0x1p127, 0, 0x1p127}};
  for (const auto& row : rows) {
    SCOPED_TRACE(row.sink);
    data.sink.set(row.sink, 0);
    each_kernel([&](const Kernel& kernel) {
      const Outputs o = run(data, kernel);
      EXPECT_NEAR(o.out.at(0, 0, 0, 0), row.out, 1e-6);
      EXPECT_FLOAT_EQ(static_cast<float>(o.lse.at(0, 0, 0)), static_cast<float>(row.lse));
      if (kernel.pass == Pass::backward) EXPECT_NEAR(o.dsink.at(0), 3 * row.out * std::exp(row.sink - row.lse), 1e-6);
    });
  }
}

TEST(ContractOracles, PriorsOfAnySize) {
  Case c;
  c.seqlen_k = 2, c.head_dim = c.value_dim = 1, c.fill = Fill::zero_query, c.prior = true, c.backward = false;
  CaseData data(c);
  data.v.set(0, 0, 0), data.v.set(1, 0, 1);
  data.prior_out.set(3, 0, 0);
  struct {
    double prior, out, lse;
  } const rows[] = {{-INFINITY, 0.5, std::log(2.0)},
                    {std::log(2.0), 1.75, std::log(4.0)},
                    {1000, 3, 1000},
                    {-1000, 0.5, std::log(2.0)},
                    {0x1p127, 3, 0x1p127},
                    {-0x1p127, 0.5, std::log(2.0)}};
  for (const auto& row : rows) {
    SCOPED_TRACE(row.prior);
    data.prior_lse.set(row.prior, 0, 0);
    each_kernel(Pass::forward, [&](const Kernel& kernel) {
      const Outputs o = run(data, kernel);
      EXPECT_NEAR(o.out.at(0, 0, 0, 0), row.out, 1e-6);
      EXPECT_FLOAT_EQ(static_cast<float>(o.lse.at(0, 0, 0)), static_cast<float>(row.lse));
    });
  }
}

// ---- The oracle's own numbers: every pattern of a 16-bit type, there and back.

TEST(ContractOracles, Fp64IsForTheReferenceAlone) {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    Problem problem;
    problem.pass = pass, problem.type = Type::f64;
    for (const Kernel* kernel : kernels_here(pass))
      EXPECT_EQ(refusal_of(*kernel, problem, true).empty(), kernel->rank == Rank::fallback) << kernel->name;
  }
}

TEST(ElementValues, EveryPatternOfHalf) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    const int exponent = static_cast<int>(bits >> 10 & 31), mantissa = static_cast<int>(bits & 1023);
    const double sign = bits >> 15 ? -1 : 1;
    const double size = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    const float value = cpu::value_of_half(half);
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), mantissa != 0);
      if (mantissa == 0) EXPECT_EQ(value, sign * INFINITY);
      continue;
    }
    ASSERT_EQ(value, sign * size);
    ASSERT_EQ(cpu::half_of(value), half);
    // Half way to the next number rounds to even, a little more rounds up.
    const double next = exponent == 0 ? std::ldexp(mantissa + 1, -24) : std::ldexp(1025 + mantissa, exponent - 25);
    const float middle = static_cast<float>(sign * (size + next) / 2);
    ASSERT_EQ(cpu::half_of(middle), mantissa % 2 ? half + 1 : half);
    ASSERT_EQ(cpu::half_of(std::nextafter(middle, static_cast<float>(sign * INFINITY))), half + 1);
    ASSERT_EQ(cpu::half_of(std::nextafter(middle, 0.0f)), half);
  }
  EXPECT_TRUE(std::isnan(cpu::value_of_half(cpu::half_of(NAN))));
}

TEST(ElementValues, EveryPatternOfBfloat16) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const uint16_t pattern = static_cast<uint16_t>(bits);
    const float value = cpu::value_of_bfloat16(pattern);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(cpu::value_of_bfloat16(cpu::bfloat16_of(value))));
      continue;
    }
    ASSERT_EQ(cpu::bfloat16_of(value), pattern);
    if (std::isinf(value)) continue;
    const float middle = std::bit_cast<float>(bits << 16 | 0x8000);
    ASSERT_EQ(cpu::bfloat16_of(middle), bits % 2 ? pattern + 1 : pattern);
    ASSERT_EQ(cpu::bfloat16_of(std::bit_cast<float>(bits << 16 | 0x8001)), pattern + 1);
    ASSERT_EQ(cpu::bfloat16_of(std::bit_cast<float>(bits << 16 | 0x7fff)), pattern);
  }
}

}  // namespace
}  // namespace tilewise::cases
