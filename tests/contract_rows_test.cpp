// Contract C1 to C3: rows without keys, memory that is dead, and no stand-in for minus infinity.
#include "tests/contract.h"

namespace tilewise::cases {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// ---- C1. That rows and keys which see nothing are 0 to the bit, `judge` checks in every case of the table.

TEST(ContractC1, RowsAboveTheDiagonalSeeNothing) {
  Case c;
  c.seqlen_q = 128, c.seqlen_k = 64, c.causal = true;
  const CaseData data(c);
  each_kernel([&](const Kernel& kernel) {
    const Outputs o = run(data, kernel);
    for (int64_t i = 0; i < 64; ++i) {
      EXPECT_EQ(o.lse.at(0, 0, i), -INFINITY);
      EXPECT_EQ(o.out.at(0, i, 0, 5), 0);
      if (kernel.pass == Pass::backward) EXPECT_EQ(o.dq.at(0, i, 0, 5), 0);
    }
    EXPECT_TRUE(std::isfinite(o.lse.at(0, 0, 64)));
  });
}

TEST(ContractC1, ARowThatSeesOnlyTheSinkHasItsLogit) {
  Case c;
  c.seqlen_q = 20, c.seqlen_k = 8, c.heads = c.heads_kv = 2, c.causal = true, c.sink = c.dsink = true, c.dlse = true;
  c.used_q = {17};
  const CaseData data(c);
  each_kernel([&](const Kernel& kernel) {
    const Outputs o = run(data, kernel);
    for (int64_t h = 0; h < 2; ++h) {
      EXPECT_FLOAT_EQ(o.lse.at(0, h, 3), data.sink.at(h));
      EXPECT_EQ(o.out.at(0, 3, h, 0), 0);
      if (kernel.pass == Pass::forward) EXPECT_EQ(o.lse.at(0, h, 18), -INFINITY) << "past seqused_q, whatever the sink";
    }
  });
}

TEST(ContractC1, ASinkThatIsNoNumberReachesItsHead) {
  Case c;
  c.seqlen_q = 20, c.seqlen_k = 30, c.heads = c.heads_kv = 3, c.causal = true, c.sink = true;
  CaseData data(c);
  data.sink.set(-INFINITY, 2);
  for (const double bad : {kNaN, double{INFINITY}}) {
    SCOPED_TRACE(bad);
    data.sink.set(bad, 1);
    each_kernel(Pass::forward, [&](const Kernel& kernel) {
      const Outputs o = run(data, kernel);
      for (int64_t h = 0; h < 3; ++h) {
        EXPECT_EQ(std::isnan(o.lse.at(0, h, 7)), h == 1);
        EXPECT_EQ(std::isnan(o.out.at(0, 7, h, 0)), h == 1);
      }
    });
  }
}

// Each takes every key from some rows: mask, bias of -inf, and both together.
TEST(ContractC1, RowsWhoseKeysAreMaskedOneByOne) {
  Case c;
  c.seqlen_q = 40, c.seqlen_k = 100, c.mask = "11qk", c.bias = "11qk", c.dbias = true;
  CaseData data(c);
  for (int64_t j = 0; j < 100; ++j) {
    data.mask.set(0, 0, 0, 7, j);
    data.bias.set(-INFINITY, 0, 0, 23, j);
    data.mask.set(j % 2, 0, 0, 31, j);
    data.bias.set(j % 2 ? -INFINITY : 0, 0, 0, 31, j);
  }
  each_kernel([&](const Kernel& kernel) {
    const Outputs o = run(data, kernel);
    for (const int64_t i : {7, 23, 31}) {
      EXPECT_EQ(o.lse.at(0, 0, i), -INFINITY);
      EXPECT_EQ(o.out.at(0, i, 0, 9), 0);
      if (kernel.pass != Pass::backward) continue;
      EXPECT_EQ(o.dq.at(0, i, 0, 9), 0);
      EXPECT_EQ(o.dbias.at(0, 0, i, 50), 0);
    }
  });
}

TEST(ContractC1, EmptyCalls) {
  for (const auto& [batch, rows, keys] : {std::array<int64_t, 3>{0, 4, 4}, {2, 0, 4}, {2, 4, 0}, {2, 0, 0}}) {
    for (const bool causal : {false, true}) {
      Case c;
      c.batch = batch, c.seqlen_q = rows, c.seqlen_k = keys, c.heads = 4, c.heads_kv = 2, c.causal = causal;
      c.bias = "b1q1", c.dbias = true;
      const CaseData data(c);
      each_kernel([&](const Kernel& kernel) {
        const Outputs o = run(data, kernel);
        o.lse.each([&](int64_t a, int64_t b, int64_t i, int64_t) {
          if (c.seqlen_k == 0) EXPECT_EQ(o.lse.at(a, b, i), -INFINITY);
        });
        if (kernel.pass != Pass::backward) return;
        for (const Stored* t : {&o.dq, &o.dk, &o.dv, &o.dbias})
          t->each([&](int64_t a, int64_t b, int64_t i, int64_t d) { EXPECT_EQ(t->at(a, b, i, d), 0); });
      });
    }
  }
}

// ---- C2. Every case of the table has NaN in all memory that is dead; here NaN lies where some rows use it.

Case banded() {
  Case c;
  c.seqlen_q = c.seqlen_k = 150, c.head_dim = c.value_dim = 32, c.window_left = 60, c.window_right = 0;
  return c;
}

TEST(ContractC2, NanInAKeyReachesEveryRowThatUsesIt) {
  for (const int64_t bad : {0, 70, 149}) {
    for (const double number : {kNaN, double{INFINITY}, -double{INFINITY}}) {
      for (Stored CaseData::*tensor : {&CaseData::k, &CaseData::v}) {
        CaseData data(banded());
        (data.*tensor).set(number, 0, bad, 0, 5);
        each_kernel(Pass::forward, [&](const Kernel& kernel) {
          const Outputs o = run(data, kernel);
          const bool is_reference = names_kernel("reference", kernel.name);
          for (int64_t i = 0; i < 150; ++i) {
            const bool uses = i >= bad && i - 60 <= bad, finite = std::isfinite(o.out.at(0, i, 0, 5));
            // An infinite key may be the maximum (NaN) or get no weight at all.
            if (uses && (tensor == &CaseData::v || std::isnan(number))) EXPECT_FALSE(finite) << bad << " row " << i;
            if (!uses && is_reference) EXPECT_TRUE(finite) << bad << " row " << i;
          }
        });
      }
    }
  }
}

// 0 * NaN is NaN: each takes all keys from some rows and leaves other rows of their tiles a key full of NaN.
TEST(ContractC2, NanInAKeyDoesNotReachRowsWithoutKeys) {
  const Option takes[] = {
      [](Case& c) { c.causal = true; },
      [](Case& c) { c.causal = c.sink = true; },
      [](Case& c) { c.mask = "11qk"; },
      [](Case& c) { c.bias = "11qk"; },
  };
  for (const Option take : takes) {
    Case c;
    c.seqlen_q = 70, c.seqlen_k = 40, c.head_dim = c.value_dim = 20;  // causal: rows 0..29 see nothing
    take(c);
    SCOPED_TRACE(c.name());
    CaseData data(c);
    for (int64_t i = 0; i < 30; ++i)
      for (int64_t j = 0; j < 40; ++j) {
        if (data.mask) data.mask.set(0, 0, 0, i, j);
        if (data.bias) data.bias.set(-INFINITY, 0, 0, i, j);
      }
    for (int64_t d = 0; d < 20; ++d) data.k.set(kNaN, 0, 0, 0, d), data.v.set(kNaN, 0, 0, 0, d);
    each_kernel([&](const Kernel& kernel) {
      const Outputs o = run(data, kernel);
      for (int64_t i = 0; i < 30; ++i) {
        EXPECT_EQ(o.lse.at(0, 0, i), c.sink ? data.sink.at(0) : -INFINITY) << "row " << i;
        EXPECT_EQ(o.out.at(0, i, 0, 19), 0) << "row " << i;
        if (kernel.pass == Pass::backward) EXPECT_EQ(o.dq.at(0, i, 0, 19), 0) << "row " << i;
      }
    });
  }
}

// The value of key 20 is so large that the smallest weight would show, and its product with dout is infinite.
TEST(ContractC2, ADeadKeyHasNoWeightAtAll) {
  for (const char* mask : {"", "11qk"}) {
    Case c;
    c.seqlen_q = c.seqlen_k = 60, c.head_dim = c.value_dim = 20, c.mask = mask, c.causal = c.mask.empty();
    CaseData plain(c);
    for (int64_t i = 0; i < 60 && plain.mask; ++i) plain.mask.set(i == 59, 0, 0, i, 20);
    CaseData data = plain;
    for (int64_t d = 0; d < 20; ++d) data.v.set(3e38, 0, 20, 0, d);
    each_kernel([&](const Kernel& kernel) {
      const Outputs want = run(plain, kernel), got = run(data, kernel);
      const Stored Outputs::*rows = kernel.pass == Pass::forward ? &Outputs::out : &Outputs::dq;
      for (int64_t i = 0; i < (c.causal ? 20 : 59); ++i)
        EXPECT_TRUE(same_bits((got.*rows).at(0, i, 0, 7), (want.*rows).at(0, i, 0, 7))) << "row " << i;
    });
  }
}

TEST(ContractC2, NanInAQueryReachesItsOwnRowOnly) {
  Case c = banded();
  c.heads = 2;
  const CaseData clean(c);
  CaseData data(c);
  data.q.set(kNaN, 0, 77, 1, 3);
  each_kernel(Pass::forward, [&](const Kernel& kernel) {
    const Outputs want = run(clean, kernel), got = run(data, kernel);
    got.out.each([&](int64_t b, int64_t i, int64_t h, int64_t d) {
      if (i == 77 && h == 1) {
        EXPECT_TRUE(std::isnan(got.out.at(b, i, h, d))) << "hidden by a guard for empty rows";
      } else {
        EXPECT_TRUE(same_bits(got.out.at(b, i, h, d), want.out.at(b, i, h, d))) << "row " << i;
      }
    });
  });
}

TEST(ContractC2, NanInTheGradientOfARowReachesItselfAndItsKeys) {
  for (const double number : {kNaN, double{INFINITY}}) {
    CaseData data(banded());
    for (int64_t d = 0; d < 32; ++d) data.dout.set(number, 0, 100, 0, d);
    each_kernel(Pass::backward, [&](const Kernel& kernel) {
      const Outputs o = run(data, kernel);
      const bool is_reference = names_kernel("reference", kernel.name);
      for (int64_t i = 0; i < 150; ++i) {
        EXPECT_EQ(std::isfinite(o.dq.at(0, i, 0, 0)), i != 100) << "dq " << i;
        const bool seen = i <= 100 && i >= 40;
        if (seen) EXPECT_FALSE(std::isfinite(o.dk.at(0, i, 0, 0))) << "dk " << i;
        if (!seen && is_reference) EXPECT_TRUE(std::isfinite(o.dk.at(0, i, 0, 0))) << "dk " << i;
      }
    });
  }
}

// Sequences, heads and slots do not meet, whatever a tile holds.
TEST(ContractC2, NanInOneSequenceLeavesItsMatesAlone) {
  Case packed;
  packed.batch = 3, packed.packed_q = {9, 30, 14}, packed.packed_k = {20, 41, 10}, packed.causal = true;
  packed.seqlen_q = 30, packed.seqlen_k = 41, packed.heads = 4, packed.heads_kv = 2;
  const CaseData clean(packed);
  CaseData data(packed);
  for (int64_t j = 20; j < 61; ++j) data.k.set(kNaN, 0, j, 0, 0), data.v.set(kNaN, 0, j, 0, 0);
  for (int64_t i = 9; i < 39; ++i) data.q.set(kNaN, 0, i, 0, 0), data.q.set(kNaN, 0, i, 1, 0);
  each_kernel([&](const Kernel& kernel) {
    const Outputs want = run(clean, kernel), got = run(data, kernel);
    const bool forward = kernel.pass == Pass::forward;
    const Stored &a = forward ? got.out : got.dq, &b = forward ? want.out : want.dq;
    a.each([&](int64_t s, int64_t i, int64_t h, int64_t d) {
      const bool spoiled = i >= 9 && i < 39 && h < 2;
      if (!spoiled) EXPECT_TRUE(same_bits(a.at(s, i, h, d), b.at(s, i, h, d))) << "row " << i << " head " << h;
    });
  });
}

// ---- C3.

// Channel 0 of q is 1 and that of k the same for all keys: it adds a constant to all scores.
TEST(ContractC3, ShiftingTheScoresOfARowLeavesOutAsItIs) {
  Case c;
  c.seqlen_q = 50, c.seqlen_k = 200, c.head_dim = 16, c.scale = 1.0f, c.causal = true;
  const auto with_shift = [&](double shift) {
    CaseData data(c);
    // Multiples of 1/8, so that shifted scores are exact.
    for (Stored* t : {&data.q, &data.k})
      t->each([&](int64_t a, int64_t i, int64_t h, int64_t d) {
        t->set(std::round(t->at(a, i, h, d) * 8) / 8, a, i, h, d);
      });
    for (int64_t i = 0; i < 50; ++i) data.q.set(1, 0, i, 0, 0);
    for (int64_t j = 0; j < 200; ++j) data.k.set(shift, 0, j, 0, 0);
    return data;
  };
  const CaseData plain = with_shift(0);
  for (const double shift : {-4096.0, -100.0, 100.0, 4096.0, -65536.0}) {
    const CaseData shifted = with_shift(shift);
    each_kernel(Pass::forward, [&](const Kernel& kernel) {
      const Outputs want = run(plain, kernel), got = run(shifted, kernel);
      EXPECT_LT(largest_difference(got.out, want.out), 2e-6) << shift;
      EXPECT_NEAR(got.lse.at(0, 0, 49) - want.lse.at(0, 0, 49), shift, std::abs(shift) * 0x1p-22) << shift;
    });
  }
}

// out is the mean of the values that a row sees, however low all scores are.
TEST(ContractC3, LowScoresAreScores) {
  for (const Fill fill : {Fill::lowest, Fill::negative, Fill::equal_keys}) {
    for (const bool causal : {false, true}) {
      Case c;
      c.seqlen_q = 88, c.seqlen_k = 448, c.head_dim = c.value_dim = 32, c.causal = causal, c.fill = fill;
      CaseData data(c);
      if (fill == Fill::negative) {  // without its noise
        data.k.each([&](int64_t a, int64_t j, int64_t h, int64_t d) { data.k.set(4.1875, a, j, h, d); });
        data.q.each([&](int64_t a, int64_t i, int64_t h, int64_t d) { data.q.set(-4.25, a, i, h, d); });
      }
      if (fill == Fill::equal_keys)
        data.k.each([&](int64_t a, int64_t j, int64_t h, int64_t d) { data.k.set(0, a, j, h, d); });
      each_kernel(Pass::forward, [&](const Kernel& kernel) {
        const Outputs o = run(data, kernel);
        for (int64_t i = 0; i < 88; ++i) {
          double mean = 0;
          const int64_t seen = causal ? i + 361 : 448;
          for (int64_t j = 0; j < seen; ++j) mean += data.v.at(0, j, 0, 3) / static_cast<double>(seen);
          EXPECT_NEAR(o.out.at(0, i, 0, 3), mean, 1e-6) << name_of(fill) << " row " << i;
        }
      });
    }
  }
}

}  // namespace
}  // namespace tilewise::cases
