// Contract C4 and C7: what may not change a result, and what a call may not depend on.
#include <array>
#include <thread>

#include "tests/contract.h"

namespace tilewise::cases {
namespace {

Case busy() {
  Case c;
  c.batch = 2, c.seqlen_q = 70, c.seqlen_k = 210, c.heads = 6, c.heads_kv = 2, c.head_dim = 20, c.value_dim = 24;
  c.causal = true, c.used_k = {210, 77}, c.dlse = true, c.sink = c.dsink = true;
  return c;
}

Case with_pairs() {
  Case c = busy();
  c.bias = "1hqk", c.dbias = true, c.mask = "b1qk", c.dropout_p = 0.2f, c.softcap = 4, c.alibi = "1h";
  return c;
}

// Several units of a backward, which hand on sums in order.
Case two_chunks() {
  Case c = busy();
  c.seqlen_q = 100, c.seqlen_k = 900, c.used_k = {900, 770}, c.heads = 2, c.heads_kv = 1, c.type = Type::bf16;
  return c;
}

Case two_chunks_with_gaps() {
  Case c = two_chunks();
  c.causal = false, c.key_begin = c.key_end = "bhq", c.bias = "1hqk", c.dbias = true, c.dropout_p = 0.3f;
  return c;
}

// So many that a sum of dq depends on the order of its parts.
Case five_chunks(Type type) {
  Case c;
  c.seqlen_q = 100, c.seqlen_k = 2000, c.head_dim = 16, c.value_dim = 8, c.type = type;
  return c;
}

// ---- C4: strides and alignment.

TEST(ContractC4, StridesAndAlignmentChangeNoBit) {
  for (const Type type : {Type::f32, Type::f16, Type::bf16}) {
    for (Case c : {busy(), with_pairs()}) {
      c.type = type;
      const CaseData plain(c);
      each_kernel([&](const Kernel& kernel) {
        const Outputs want = run(plain, kernel);
        for (const Layout layout : {Layout::heads_outside, Layout::gaps, Layout::unaligned}) {
          for (const bool mixed : {false, true}) {
            c.layout = layout, c.mixed_layouts = mixed;
            SCOPED_TRACE(c.name());
            expect_same(run(CaseData(c), kernel), want, kernel.pass);
          }
        }
      });
    }
  }
}

tw_tensor with_keys_outside(tw_tensor t) {
  std::swap(t.shape[2], t.shape[3]), std::swap(t.stride[2], t.stride[3]);
  return t;
}

// The last stride of bias and dbias is free.
TEST(ContractC4, ATransposedBiasChangesNoBit) {
  for (const Type type : {Type::f32, Type::bf16}) {
    Case c = with_pairs();
    c.bias = "bhqk", c.bias_type = type;
    const CaseData data(c);
    const Shape turned = {c.batch, c.heads, c.seqlen_k, c.seqlen_q};
    Stored bias(type, turned);
    bias.each([&](int64_t b, int64_t h, int64_t j, int64_t i) { bias.set(data.bias.at(b, h, i, j), b, h, j, i); });
    each_kernel(Pass::backward, [&](const Kernel& kernel) {
      const Outputs want = run(data, kernel);
      Outputs got = backward_outputs(data, want);
      const Stored dbias(type, turned, Layout::gaps);
      tw_attention a = data.attention(got, Pass::backward);
      tw_attention_grad g = data.gradients(got);
      a.bias = with_keys_outside(bias.view()), g.dbias = with_keys_outside(dbias.view());
      const Status status = run_call(a, &g, kernel);
      ASSERT_TRUE(status.ok()) << status.message.chars;
      got.dbias.each(
          [&](int64_t b, int64_t h, int64_t i, int64_t j) { got.dbias.set(dbias.at(b, h, j, i), b, h, i, j); });
      expect_same(got, want, Pass::backward);
      EXPECT_TRUE(dbias.gaps_are_untouched());
    });
  }
}

// ---- C4: repeated calls, threads.

TEST(ContractC4, TheSameCallGivesTheSameBitsAtAnyNumberOfThreads) {
  for (Case c :
       {busy(), with_pairs(), two_chunks(), two_chunks_with_gaps(), five_chunks(Type::f32), five_chunks(Type::bf16)}) {
    c.deterministic = true;
    const CaseData data(c);
    each_kernel([&](const Kernel& kernel) {
      const Outputs want = run(data, kernel);
      for (int threads = 1; threads <= 8; ++threads) {
        RunOptions options;
        options.threads = threads;
        SCOPED_TRACE(threads);
        expect_same(run(data, kernel, options), want, kernel.pass);
      }
    });
  }
}

// A pool that runs its tasks one after another, the last one first.
void run_backwards(void*, int64_t count, Task task, void* context) {
  while (count-- > 0) task(context, count);
}

TEST(ContractC4, AnyOrderOfTasksGivesTheSameBits) {
  const Parallel plain_loop{nullptr, run_backwards};
  RunOptions options;
  options.pool = &plain_loop, options.threads = 3;
  for (const Case& c : {with_pairs(), five_chunks(Type::f32), five_chunks(Type::bf16)}) {
    const CaseData data(c);
    each_kernel([&](const Kernel& kernel) { expect_same(run(data, kernel, options), run(data, kernel), kernel.pass); });
  }
}

// The squares of a group of heads are more than `standard` keeps at once, so it goes through them head by head.
TEST(ContractC4, StandardAttentionInSeveralRoundsAgreesWithTheOthers) {
  Case c;
  c.seqlen_q = 1030, c.seqlen_k = 1500, c.heads = 6, c.heads_kv = 1, c.head_dim = c.value_dim = 4;
  const CaseData data(c);
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    const Outputs want = run(data, *kernels_here(pass).front());
    each_kernel(pass, [&](const Kernel& kernel) {
      if (kernel.algorithm != Algorithm::standard) return;
      const Outputs got = run(data, kernel);
      for (const auto& [name, output] : outputs_of(pass))
        if (got.*output) EXPECT_LT(largest_difference(got.*output, want.*output), 1e-5) << name;
    });
  }
}

// ---- Gradients of 16 bits are sums of fp32, rounded once.

TEST(ContractC8, GradientsOf16BitsAreThoseOfFp32Rounded) {
  for (const Type type : {Type::f16, Type::bf16}) {
    Case c = five_chunks(type);
    const CaseData data(c);
    c.fp32_gradients = true;
    const CaseData wide_data(c);
    each_kernel(Pass::backward, [&](const Kernel& kernel) {
      const Outputs got = run(data, kernel), wide = run(wide_data, kernel);
      Outputs want = data.outputs();
      for (Stored Outputs::*gradient : {&Outputs::dq, &Outputs::dk, &Outputs::dv}) {
        Stored& rounded = want.*gradient;
        rounded.each([&](int64_t b, int64_t i, int64_t h, int64_t d) {
          rounded.set((wide.*gradient).at(b, i, h, d), b, i, h, d);
        });
        expect_same(got.*gradient, rounded);
      }
    });
  }
}

// ---- C4: batch mates.

// Sequence `b` of a dense case in a call of its own.
CaseData alone(const CaseData& data, int64_t b) {
  Case c = data.description();
  c.batch = 1;
  if (!c.used_k.empty()) c.used_k = {c.used_k[b]};
  CaseData single(c);
  const auto copy = [&](const Stored& from, Stored& to) {
    to.each([&](int64_t, int64_t i, int64_t h, int64_t d) { to.set(from.at(b, i, h, d), 0, i, h, d); });
  };
  copy(data.q, single.q), copy(data.k, single.k), copy(data.v, single.v);
  copy(data.dout, single.dout), copy(data.dlse, single.dlse);
  single.sink = data.sink;
  return single;
}

TEST(ContractC4, ABatchInvariantRowHasTheBitsOfItsSequenceAlone) {
  for (const int64_t rows : {1, 3, 70}) {
    Case c = busy();
    c.seqlen_q = rows, c.batch_invariant = true;
    const CaseData data(c);
    each_kernel(Pass::forward, [&](const Kernel& kernel) {
      const Outputs together = run(data, kernel);
      for (int64_t b = 0; b < 2; ++b) {
        const Outputs single = run(alone(data, b), kernel);
        single.out.each([&](int64_t, int64_t i, int64_t h, int64_t d) {
          EXPECT_TRUE(same_bits(single.out.at(0, i, h, d), together.out.at(b, i, h, d)))
              << "sequence " << b << " row " << i;
        });
      }
    });
  }
}

// The same tokens dense with lengths, packed, and in a cache with room to spare.
TEST(ContractC4, PackedAndDenseAgree) {
  Case dense;
  dense.batch = 3, dense.seqlen_q = 40, dense.seqlen_k = 90, dense.heads = 4, dense.heads_kv = 2, dense.causal = true;
  dense.used_q = {40, 0, 13}, dense.used_k = {33, 90, 71};
  Case packed = dense;
  packed.packed_q = dense.used_q, packed.packed_k = dense.used_k, packed.used_q = {}, packed.used_k = {};
  const CaseData in_slots(dense);
  CaseData in_rows(packed);
  const auto copy = [&](const Stored& from, Stored& to, const std::vector<int64_t>& lengths) {
    int64_t token = 0;
    for (int64_t b = 0; b < 3; ++b)
      for (int64_t i = 0; i < lengths[b]; ++i, ++token)
        for (int64_t h = 0; h < to.shape()[2]; ++h)
          for (int64_t d = 0; d < to.shape()[3]; ++d) to.set(from.at(b, i, h, d), 0, token, h, d);
  };
  copy(in_slots.q, in_rows.q, dense.used_q), copy(in_slots.dout, in_rows.dout, dense.used_q);
  copy(in_slots.k, in_rows.k, dense.used_k), copy(in_slots.v, in_rows.v, dense.used_k);
  each_kernel([&](const Kernel& kernel) {
    const Outputs a = run(in_slots, kernel), b = run(in_rows, kernel);
    for (const int64_t i : {0, 12}) {
      for (int64_t h = 0; h < 4; ++h) {
        EXPECT_NEAR(a.out.at(2, i, h, 7), b.out.at(0, 40 + i, h, 7), 1e-6);
        EXPECT_NEAR(a.lse.at(2, h, i), b.lse.at(0, h, 40 + i), 1e-5);
        if (kernel.pass == Pass::backward) EXPECT_NEAR(a.dq.at(2, i, h, 7), b.dq.at(0, 40 + i, h, 7), 1e-5);
      }
    }
    if (kernel.pass == Pass::backward) EXPECT_NEAR(a.dk.at(2, 70, 1, 3), b.dk.at(0, 33 + 90 + 70, 1, 3), 1e-5);
  });
}

// Rows [first, first + count) in a call of their own; q_positions say where they stand.
TEST(ContractC4, QueriesInChunksGiveTheSameRows) {
  Case c;
  c.seqlen_q = 90, c.seqlen_k = 130, c.causal = true, c.window_left = 50, c.alibi = "1h", c.dropout_p = 0.3f;
  c.heads = c.heads_kv = 2;
  const CaseData whole(c);
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1}, {0, 37}, {37, 53}, {89, 1}}) {
    const int64_t before = first;
    Case part = c;
    part.seqlen_q = count, part.q_positions = "1q";
    CaseData chunk(part);
    for (int64_t i = 0; i < count; ++i) {
      chunk.q_positions.set(static_cast<double>(first + i + 40), 0, i);
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t d = 0; d < 64; ++d) chunk.q.set(whole.q.at(0, first + i, h, d), 0, i, h, d);
    }
    chunk.k = whole.k, chunk.v = whole.v, chunk.alibi = whole.alibi;
    each_kernel(Pass::forward, [&](const Kernel& kernel) {
      const Outputs want = run(whole, kernel), got = run(chunk, kernel);
      got.out.each([&](int64_t, int64_t i, int64_t h, int64_t d) {
        EXPECT_NEAR(got.out.at(0, i, h, d), want.out.at(0, before + i, h, d), 2e-6);
      });
    });
  }
}

// Keys in two calls, the second of which goes on from the first, against one call over all of them.
TEST(ContractC4, KeysInTwoCallsMergeToTheSameResult) {
  Case c;
  c.seqlen_q = 60, c.seqlen_k = 130, c.dropout_p = 0.2f;
  const CaseData values(c);
  c.q_positions = "1q", c.k_positions = "1k", c.causal = true;
  CaseData whole(c);
  whole.q = values.q, whole.k = values.k, whole.v = values.v;
  whole.k_positions.each([&](int64_t, int64_t j, int64_t, int64_t) { whole.k_positions.set(double(j), 0, j); });
  whole.q_positions.each([&](int64_t, int64_t i, int64_t, int64_t) { whole.q_positions.set(double(i * 2 + 3), 0, i); });
  each_kernel(Pass::forward, [&](const Kernel& kernel) {
    Outputs parts[2];
    const Outputs want = run(whole, kernel);
    for (const int64_t step : {0, 1}) {
      Case part = c;
      part.seqlen_k = step == 0 ? 49 : 81, part.prior = true;
      CaseData data(part);
      data.q = whole.q, data.q_positions = whole.q_positions;
      data.k_positions.each(
          [&](int64_t, int64_t j, int64_t, int64_t) { data.k_positions.set(double(j + 49 * step), 0, j); });
      const auto copy = [&](const Stored& from, Stored& to) {
        to.each([&](int64_t, int64_t j, int64_t h, int64_t d) { to.set(from.at(0, j + 49 * step, h, d), 0, j, h, d); });
      };
      copy(whole.k, data.k), copy(whole.v, data.v);
      data.prior_lse.each([&](int64_t, int64_t, int64_t i, int64_t) {
        data.prior_lse.set(step == 0 ? -INFINITY : parts[0].lse.at(0, 0, i), 0, 0, i);
        for (int64_t d = 0; d < 64; ++d) data.prior_out.set(step == 0 ? NAN : parts[0].out.at(0, i, 0, d), 0, i, 0, d);
      });
      parts[step] = run(data, kernel);
    }
    EXPECT_LT(largest_difference(parts[1].out, want.out), 2e-6);
    EXPECT_LT(largest_difference(parts[1].lse, want.lse), 4e-6);
  });
}

// ---- C7: calls that overlap in time.

TEST(ContractC7, ConcurrentCallsDoNotMeet) {
  std::vector<CaseData> data;
  for (int64_t i = 0; i < 4; ++i) {
    Case c = i % 2 ? busy() : with_pairs();
    c.seed = 10 + static_cast<uint64_t>(i), c.seqlen_q = 40 + 17 * i;
    data.emplace_back(c);
  }
  each_kernel([&](const Kernel& kernel) {
    if (names_kernel("portable", kernel.name)) return;  // the same code
    std::vector<Outputs> want, got(data.size());
    for (const CaseData& d : data) want.push_back(run(d, kernel));
    std::vector<std::thread> threads;
    for (size_t i = 0; i < data.size(); ++i) threads.emplace_back([&, i] { got[i] = run(data[i], kernel); });
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < data.size(); ++i) expect_same(got[i], want[i], kernel.pass);
  });
}

// ---- C7: numbers that would lead outside the tensors.

struct BadNumber {
  const char* what;
  Stored CaseData::*tensor;
  int64_t at;
  double value;
};

TEST(ContractC7, BadNumbersAreRefusedAndNothingIsWritten) {
  Case packed;
  packed.batch = 3, packed.packed_q = {5, 9, 2}, packed.packed_k = {7, 9, 12}, packed.seqlen_q = 9,
  packed.seqlen_k = 12;
  packed.used_q = {5, 3, 2}, packed.used_k = {7, 9, 11}, packed.left_pad = {0, 1, 2}, packed.max_seqlen = true;
  Case dense;
  dense.batch = 3, dense.seqlen_q = 9, dense.seqlen_k = 12, dense.batch_index = {2, 0, 1}, dense.backward = false;
  dense.q_positions = "1q", dense.k_positions = "1k";
  constexpr double kMost = 2147483647, kLeast = -2147483648.0;
  const std::vector<std::pair<Case, BadNumber>> bad = {
      {packed, {"cu_seqlens_q[0]", &CaseData::cu_seqlens_q, 0, 1}},
      {packed, {"cu_seqlens_q[1]", &CaseData::cu_seqlens_q, 1, -3}},
      {packed, {"cu_seqlens_q[2]", &CaseData::cu_seqlens_q, 1, 15}},
      {packed, {"cu_seqlens_q[3]", &CaseData::cu_seqlens_q, 3, kMost}},
      {packed, {"cu_seqlens_k[3]", &CaseData::cu_seqlens_k, 3, 29}},
      {packed, {"cu_seqlens_k[1]", &CaseData::cu_seqlens_k, 1, kLeast}},
      {packed, {"seqused_q[1]", &CaseData::used_q, 1, 10}},
      {packed, {"seqused_q[2]", &CaseData::used_q, 2, -1}},
      {packed, {"seqused_k[0]", &CaseData::used_k, 0, 8}},
      {packed, {"seqused_k[2]", &CaseData::used_k, 2, kLeast}},
      {packed, {"leftpad_k[0]", &CaseData::left_pad, 0, 8}},
      {packed, {"leftpad_k[1]", &CaseData::left_pad, 1, -1}},
      {dense, {"batch_index_k[1]", &CaseData::batch_index, 1, 3}},
      {dense, {"batch_index_k[2]", &CaseData::batch_index, 2, -1}},
      {dense, {"k_positions", &CaseData::k_positions, 0, kMost}},
  };
  for (const auto& [description, bad_number] : bad) {
    const auto& number = bad_number;
    SCOPED_TRACE(number.what);
    CaseData data(description);
    Stored& tensor = data.*number.tensor;
    number.tensor == &CaseData::k_positions ? tensor.set(number.value, 0, number.at)
                                            : tensor.set(number.value, number.at);
    each_kernel(Pass::forward, [&](const Kernel& kernel) {
      const Outputs outputs = data.outputs();
      const std::vector<char> before = outputs.out.bytes();
      RunOptions options;
      options.kernel = kernel.name;
      Plan plan;
      const Status status = run_case(data, Pass::forward, options, outputs, plan);
      EXPECT_EQ(status.code, TW_INVALID_ARGUMENT);
      EXPECT_NE(std::string(status.message.chars).find(number.what), std::string::npos) << status.message.chars;
      EXPECT_EQ(outputs.out.bytes(), before);
    });
  }
}

}  // namespace
}  // namespace tilewise::cases
