// The worked calls of docs/api.md as a user writes them, on the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "api_call.h"

namespace tilewise::test {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();

using Floats = std::vector<float>;

Floats zeros(int64_t count) { return Floats(static_cast<size_t>(count), 0.0f); }

void expect_near(const Floats& given, const Floats& wanted, float tolerance) {
  ASSERT_EQ(given.size(), wanted.size());
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i] == wanted[i]) continue;  // infinities
    ASSERT_NEAR(given[i], wanted[i], tolerance) << "element " << i;
  }
}

tw_attention on_cpu() {
  tw_attention a;
  TW_INIT(a);
  a.device_type = TW_CPU;
  return a;
}

tw_attention_grad no_gradients() {
  tw_attention_grad g;
  TW_INIT(g);
  return g;
}

testing::AssertionResult ok(tw_status status) {
  if (status == TW_OK) return testing::AssertionSuccess();
  return testing::AssertionFailure() << tw_status_name(status) << ": " << tw_last_error();
}

struct ForcedKernel {
  explicit ForcedKernel(const char* name) { setenv("TILEWISE_FORCE_KERNEL", name, 1); }
  ~ForcedKernel() { unsetenv("TILEWISE_FORCE_KERNEL"); }
};

// ---- A training step on (B,H,S,D) memory, with a bool mask, dropout and fewer KV heads.

struct TrainingStep {
  static constexpr int64_t kB = 2, kH = 4, kHk = 2, kS = 70, kD = 16;
  static constexpr int64_t kQ = kB * kH * kS * kD, kK = kB * kHk * kS * kD;
  Floats q = Call::numbers(kQ, 1), k = Call::numbers(kK, 2), v = Call::numbers(kK, 3), dout = Call::numbers(kQ, 4);
  Floats out = Call::untouched(kQ), lse = Call::untouched(kB * kH * kS);
  Floats dq = Call::untouched(kQ), dk = Call::untouched(kK), dv = Call::untouched(kK);
  std::vector<uint8_t> mask = std::vector<uint8_t>(static_cast<size_t>(kB * kS * kS));
  int64_t seed_offset[2] = {1234, 7};

  TrainingStep() {
    for (size_t i = 0; i < mask.size(); ++i) mask[i] = i % 5 != 2;
  }

  static tw_tensor heads_first(Floats& data, int64_t heads) {
    return tw_tensor_swap(tw_tensor_of(data.data(), TW_F32, kB, heads, kS, kD), 1, 2);
  }

  void run(bool state_on_the_device) {
    tw_attention a = on_cpu();
    a.q = heads_first(q, kH), a.out = heads_first(out, kH);
    a.k = heads_first(k, kHk), a.v = heads_first(v, kHk);
    a.lse = tw_tensor_of(lse.data(), TW_F32, kB, kH, kS, 1);
    a.mask = tw_tensor_of(mask.data(), TW_BOOL, kB, 1, kS, kS);
    a.dropout_p = 0.1f;
    if (state_on_the_device) {
      a.dropout_state = tw_tensor_of(seed_offset, TW_I64, 2, 1, 1, 1);
      a.dropout_offset = 3;
    } else {
      a.dropout_seed = 1234, a.dropout_offset = 10;
    }
    tw_attention_grad g = no_gradients();
    g.dout = a.out, g.dout.data = dout.data();
    g.dq = a.q, g.dq.data = dq.data();
    g.dk = a.k, g.dk.data = dk.data();
    g.dv = a.v, g.dv.data = dv.data();
    ASSERT_TRUE(ok(tw_attention_forward(&a, nullptr)));
    ASSERT_TRUE(ok(tw_attention_backward(&a, &g, nullptr)));
  }
};

TEST(WorkedCalls, TrainingStep) {
  TrainingStep step, oracle;
  step.run(true);
  {
    const ForcedKernel force("reference");
    oracle.run(false);
  }
  expect_near(step.out, oracle.out, 2e-6f);
  expect_near(step.lse, oracle.lse, 2e-6f);
  expect_near(step.dq, oracle.dq, 5e-6f);
  expect_near(step.dk, oracle.dk, 5e-6f);
  expect_near(step.dv, oracle.dv, 5e-6f);
  EXPECT_EQ(step.seed_offset[1], 7) << "inputs are never written";
}

// ---- A ring over zigzag chunks, forward and backward, partials in fp32.

// The whole sequence in one call: what the ring must give.
struct Whole {
  static constexpr int64_t kChunk = 12, kChunks = 4, kS = kChunk * kChunks, kH = 2, kD = 8;
  static constexpr int64_t kRow = kH * kD, kAll = kS * kRow;
  Floats q = Call::numbers(kAll, 1), k = Call::numbers(kAll, 2), v = Call::numbers(kAll, 3),
         dout = Call::numbers(kAll, 4);
  Floats out = zeros(kAll), lse = zeros(kH * kS), dq = zeros(kAll), dk = zeros(kAll), dv = zeros(kAll);

  static tw_tensor rows(const Floats& data) {
    return tw_tensor_of(data.data(), TW_F32, 1, static_cast<int64_t>(data.size()) / kRow, kH, kD);
  }
  void run() {
    tw_attention a = on_cpu();
    a.flags = TW_CAUSAL;
    a.q = rows(q), a.k = rows(k), a.v = rows(v), a.out = rows(out);
    a.lse = tw_tensor_of(lse.data(), TW_F32, 1, kH, kS, 1);
    tw_attention_grad g = no_gradients();
    g.dout = rows(dout), g.dq = rows(dq), g.dk = rows(dk), g.dv = rows(dv);
    ASSERT_TRUE(ok(tw_attention_forward(&a, nullptr)));
    ASSERT_TRUE(ok(tw_attention_backward(&a, &g, nullptr)));
  }
};

// One of two ranks: chunks 0 and 3, or 1 and 2.
struct Rank {
  static constexpr int64_t kRows = 2 * Whole::kChunk;
  int64_t chunks[2];
  std::vector<int32_t> positions;
  Floats q, k, v, dout, out, lse, dq, dk, dv;

  Rank(const Whole& whole, int64_t first, int64_t second)
      : chunks{first, second},
        q(own(whole.q)),
        k(own(whole.k)),
        v(own(whole.v)),
        dout(own(whole.dout)),
        out(zeros(kRows * Whole::kRow)),
        lse(static_cast<size_t>(kRows * Whole::kH), kEmpty),
        dq(zeros(kRows * Whole::kRow)),
        dk(dq),
        dv(dq) {
    for (int64_t chunk : chunks) {
      for (int64_t i = 0; i < Whole::kChunk; ++i) {
        positions.push_back(static_cast<int32_t>(chunk * Whole::kChunk + i));
      }
    }
  }

  Floats own(const Floats& whole) const {
    Floats mine;
    for (int64_t chunk : chunks) {
      const auto begin = whole.begin() + chunk * Whole::kChunk * Whole::kRow;
      mine.insert(mine.end(), begin, begin + Whole::kChunk * Whole::kRow);
    }
    return mine;
  }

  tw_attention over_keys_of(Rank& other) {
    tw_attention a = on_cpu();
    a.flags = TW_CAUSAL;
    a.q = Whole::rows(q), a.k = Whole::rows(other.k), a.v = Whole::rows(other.v);
    a.q_positions = tw_tensor_of(positions.data(), TW_I32, 1, kRows, 1, 1);
    a.k_positions = tw_tensor_of(other.positions.data(), TW_I32, 1, kRows, 1, 1);
    a.out = a.prior_out = Whole::rows(out);
    a.lse = a.prior_lse = tw_tensor_of(lse.data(), TW_F32, 1, Whole::kH, kRows, 1);
    return a;
  }
};

TEST(WorkedCalls, RingOverZigzagChunks) {
  Whole whole;
  whole.run();
  Rank ranks[] = {{whole, 0, 3}, {whole, 1, 2}};
  for (Rank& rank : ranks) {
    for (int step = 0; step < 2; ++step) {
      const tw_attention a = rank.over_keys_of(ranks[(step + (&rank - ranks)) % 2]);
      ASSERT_TRUE(ok(tw_attention_forward(&a, nullptr)));
    }
    expect_near(rank.out, rank.own(whole.out), 1e-6f);
  }
  for (Rank& rank : ranks) {
    for (Rank& other : ranks) {
      tw_attention a = rank.over_keys_of(other);
      a.prior_out.dtype = a.prior_lse.dtype = TW_NONE;
      tw_attention_grad g = no_gradients();
      g.flags = TW_GRAD_ACCUMULATE;
      g.dout = Whole::rows(rank.dout), g.dq = Whole::rows(rank.dq);
      g.dk = Whole::rows(other.dk), g.dv = Whole::rows(other.dv);
      ASSERT_TRUE(ok(tw_attention_backward(&a, &g, nullptr)));
    }
  }
  for (const Rank& rank : ranks) {
    expect_near(rank.dq, rank.own(whole.dq), 2e-6f);
    expect_near(rank.dk, rank.own(whole.dk), 2e-6f);
    expect_near(rank.dv, rank.own(whole.dv), 2e-6f);
  }
}

// ---- Decode after a prefix that all requests share: the prefix once for all rows, then each one's own keys.

struct SharedPrefix {
  static constexpr int64_t kB = 3, kPrefix = 40, kOwn = 9, kH = 4, kHk = 2, kD = 8, kAll = kPrefix + kOwn;
  static constexpr int64_t kKey = kHk * kD;
  Floats q = Call::numbers(kB * kH * kD, 1), prefix_k = Call::numbers(kPrefix * kKey, 2);
  Floats prefix_v = Call::numbers(kPrefix * kKey, 3), own_k = Call::numbers(kB * kOwn * kKey, 4);
  Floats own_v = Call::numbers(kB * kOwn * kKey, 5);
  std::vector<int32_t> own_lengths = {9, 0, 4};
  Floats part = Call::untouched(2 * kB * kH * kD), part_lse = Call::untouched(2 * kB * kH);
  Floats out = Call::untouched(kB * kH * kD);

  tw_attention over_prefix() {
    tw_attention a = on_cpu();
    a.q = tw_tensor_of(q.data(), TW_F32, 1, kB, kH, kD);
    a.k = tw_tensor_of(prefix_k.data(), TW_F32, 1, kPrefix, kHk, kD);
    a.v = tw_tensor_of(prefix_v.data(), TW_F32, 1, kPrefix, kHk, kD);
    a.out = tw_tensor_of(part.data(), TW_F32, 1, kB, kH, kD);
    a.lse = tw_tensor_of(part_lse.data(), TW_F32, 1, kH, kB, 1);
    return a;
  }
  tw_attention over_own_keys(const tw_attention& prefix) {
    tw_attention a = prefix;
    a.q = tw_tensor_swap(prefix.q, 0, 1);
    a.k = tw_tensor_of(own_k.data(), TW_F32, kB, kOwn, kHk, kD);
    a.v = tw_tensor_of(own_v.data(), TW_F32, kB, kOwn, kHk, kD);
    a.seqused_k = tw_tensor_of(own_lengths.data(), TW_I32, kB, 1, 1, 1);
    a.out = tw_tensor_of(out.data(), TW_F32, kB, 1, kH, kD);
    return a;
  }
  // Each sequence's keys in a row of their own.
  Floats expected() {
    Floats k(static_cast<size_t>(kB * kAll * kKey)), v = k, result = out;
    std::vector<int32_t> lengths;
    for (int64_t b = 0; b < kB; ++b) {
      const auto fill = [&](Floats& all, const Floats& prefix, const Floats& own) {
        const auto row = all.begin() + b * kAll * kKey;
        std::copy(prefix.begin(), prefix.end(), row);
        std::copy_n(own.begin() + b * kOwn * kKey, kOwn * kKey, row + kPrefix * kKey);
      };
      fill(k, prefix_k, own_k), fill(v, prefix_v, own_v);
      lengths.push_back(static_cast<int32_t>(kPrefix) + own_lengths[static_cast<size_t>(b)]);
    }
    tw_attention a = on_cpu();
    a.q = tw_tensor_of(q.data(), TW_F32, kB, 1, kH, kD);
    a.k = tw_tensor_of(k.data(), TW_F32, kB, kAll, kHk, kD);
    a.v = tw_tensor_of(v.data(), TW_F32, kB, kAll, kHk, kD);
    a.seqused_k = tw_tensor_of(lengths.data(), TW_I32, kB, 1, 1, 1);
    a.out = tw_tensor_of(result.data(), TW_F32, kB, 1, kH, kD);
    EXPECT_EQ(tw_attention_forward(&a, nullptr), TW_OK) << tw_last_error();
    return result;
  }
};

TEST(WorkedCalls, SharedPrefixThenOwnKeys) {
  SharedPrefix s;
  const tw_attention prefix = s.over_prefix();
  ASSERT_TRUE(ok(tw_attention_forward(&prefix, nullptr)));
  tw_attention own = s.over_own_keys(prefix);
  own.prior_out = tw_tensor_swap(prefix.out, 0, 1);
  own.prior_lse = tw_tensor_swap(prefix.lse, 0, 2);
  own.lse.dtype = TW_NONE;
  ASSERT_TRUE(ok(tw_attention_forward(&own, nullptr)));
  expect_near(s.out, s.expected(), 1e-6f);
  const Floats second(s.part.begin() + SharedPrefix::kH * SharedPrefix::kD,
                      s.part.begin() + 2 * SharedPrefix::kH * SharedPrefix::kD);
  const Floats given(s.out.begin() + SharedPrefix::kH * SharedPrefix::kD,
                     s.out.begin() + 2 * SharedPrefix::kH * SharedPrefix::kD);
  EXPECT_EQ(given, second) << "a sequence without own keys keeps its prior to the bit";
}

TEST(WorkedCalls, SharedPrefixMergedAsParts) {
  SharedPrefix s;
  constexpr int64_t kPart = SharedPrefix::kB * SharedPrefix::kH * SharedPrefix::kD;
  constexpr int64_t kLsePart = SharedPrefix::kB * SharedPrefix::kH;
  const tw_attention prefix = s.over_prefix();
  ASSERT_TRUE(ok(tw_attention_forward(&prefix, nullptr)));
  tw_attention own = s.over_own_keys(prefix);
  own.out = tw_tensor_swap(prefix.out, 0, 1);
  own.out.data = s.part.data() + kPart;
  own.lse = tw_tensor_swap(prefix.lse, 0, 2);
  own.lse.data = s.part_lse.data() + kLsePart;
  ASSERT_TRUE(ok(tw_attention_forward(&own, nullptr)));
  tw_merge m;
  TW_INIT(m);
  m.device_type = TW_CPU;
  m.parts = 2;
  m.out_part_stride = kPart, m.lse_part_stride = kLsePart;
  m.out_parts = prefix.out, m.lse_parts = prefix.lse;
  m.out = tw_tensor_of(s.out.data(), TW_F32, 1, SharedPrefix::kB, SharedPrefix::kH, SharedPrefix::kD);
  ASSERT_TRUE(ok(tw_attention_merge(&m, nullptr)));
  expect_near(s.out, s.expected(), 1e-6f);
}

// ---- Prefill and decode in one packed batch, planned once for the largest.

TEST(WorkedCalls, PackedBatchPlannedForTheLargest) {
  constexpr int64_t kTokens = 10, kSlots = 4, kCapacity = 12, kH = 2, kD = 8;
  const Floats q = Call::numbers(kTokens * kH * kD, 1), k = Call::numbers(kSlots * kCapacity * kH * kD, 2);
  const Floats v = Call::numbers(kSlots * kCapacity * kH * kD, 3);
  Floats out = Call::untouched(kTokens * kH * kD), lse = Call::untouched(kH * kTokens);
  tw_attention a = on_cpu();
  a.flags = TW_CAUSAL | TW_BATCH_INVARIANT;
  a.q = tw_tensor_of(nullptr, TW_F32, 1, kTokens, kH, kD), a.out = a.q;
  a.k = a.v = tw_tensor_of(nullptr, TW_F32, kSlots, kCapacity, kH, kD);
  a.lse = tw_tensor_of(nullptr, TW_F32, 1, kH, kTokens, 1);
  a.cu_seqlens_q = tw_tensor_of(nullptr, TW_I32, kSlots + 1, 1, 1, 1);
  a.seqused_k = tw_tensor_of(nullptr, TW_I32, kSlots, 1, 1, 1);
  tw_plan plan;
  ASSERT_TRUE(ok(tw_attention_plan(&a, nullptr, &plan)));

  // A prefill of 5 rows, an idle slot, a decode of 1 row over 11 keys, an idle slot; 4 tokens of the buffer unused.
  const std::vector<int32_t> offsets = {0, 5, 5, 6, 6}, lengths = {5, 0, 11, 0};
  a.q.data = const_cast<float*>(q.data()), a.k.data = const_cast<float*>(k.data());
  a.v.data = const_cast<float*>(v.data()), a.out.data = out.data(), a.lse.data = lse.data();
  a.cu_seqlens_q.data = const_cast<int32_t*>(offsets.data()), a.seqused_k.data = const_cast<int32_t*>(lengths.data());
  std::vector<char> memory(plan.workspace_bytes + 256);
  tw_exec e;
  TW_INIT(e);
  e.workspace = memory.data() + (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256) % 256;
  e.workspace_bytes = plan.workspace_bytes;
  ASSERT_TRUE(ok(tw_attention_run(&plan, &a, nullptr, &e)));

  Floats alone = Call::untouched(kTokens * kH * kD);
  const auto one = [&](int64_t first, int64_t rows, int64_t slot, int64_t keys) {
    tw_attention s = on_cpu();
    s.flags = TW_CAUSAL;
    s.q = tw_tensor_of(q.data() + first * kH * kD, TW_F32, 1, rows, kH, kD);
    s.out = s.q, s.out.data = alone.data() + first * kH * kD;
    s.k = s.v = tw_tensor_of(k.data() + slot * kCapacity * kH * kD, TW_F32, 1, keys, kH, kD);
    s.v.data = const_cast<float*>(v.data()) + slot * kCapacity * kH * kD;
    ASSERT_TRUE(ok(tw_attention_forward(&s, nullptr)));
  };
  one(0, 5, 0, 5);
  one(5, 1, 2, 11);
  std::fill(alone.begin() + 6 * kH * kD, alone.end(), 0.0f);  // rows past the last offset
  expect_near(out, alone, 1e-6f);
  EXPECT_EQ(lse[6], kEmpty);
  EXPECT_EQ(lse[kTokens + 9], kEmpty);
}

}  // namespace
}  // namespace tilewise::test
