// What the tiled forward promises beyond right results (kernels_test checks those): bits that depend on a row's own
// sequence alone, a workspace that serves smaller problems, and what happens at the ends of fp32.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "cases/measure.h"
#include "tiled_kernels.h"

namespace tilewise::cases {
namespace {

class TiledForward : public testing::TestWithParam<const Kernel*> {
 protected:
  void SetUp() override {
    Text why_not;
    if (!GetParam()->runs_on(0, why_not)) GTEST_SKIP() << why_not.chars;
  }

  void run(const tw_attention& attention) const {
    Problem problem;
    Plan plan;
    Status status = make_problem(attention, nullptr, true, problem);
    if (status.ok()) status = run_problem(problem, {.kernel = kernel_->name}, plan);
    ASSERT_TRUE(status.ok()) << status.message.chars;
  }

  const Kernel* const kernel_ = GetParam();
};

INSTANTIATE_TEST_SUITE_P(, TiledForward, testing::ValuesIn(tiled_kernels(Pass::forward)), isa_of_tiled);

Case sequences(std::vector<int64_t> lengths, int64_t heads, int64_t heads_kv) {
  Case c;
  c.batch = static_cast<int64_t>(lengths.size()), c.heads = heads, c.heads_kv = heads_kv;
  c.head_dim = 24, c.value_dim = 40;
  c.seqlen_q = c.seqlen_k = *std::max_element(lengths.begin(), lengths.end());
  c.packed_q = c.packed_k = std::move(lengths);
  return c;
}

// The number of workers changes the blocks of query rows, but no bit.
TEST_P(TiledForward, SameBitsAtAnyNumberOfThreads) {
  std::vector<Case> list = {sequences({700, 1, 0, 130, 2000}, 3, 3), sequences({301, 999}, 14, 2)};
  list[0].causal = true, list[0].fill = Fill::rising;
  list[1].window_left = 200, list[1].softcap = 5, list[1].alibi = "1h", list[1].dropout_p = 0.2f;
  for (const Case& c : list) {
    SCOPED_TRACE(c.name());
    const CaseData data(c);
    std::vector<char> out, lse;
    for (int threads = 1; threads <= 8; ++threads) {
      const Outputs outputs = data.outputs();
      RunOptions options;
      options.kernel = kernel_->name, options.threads = threads;
      Plan plan;
      const Status status = run_case(data, Pass::forward, options, outputs, plan);
      ASSERT_TRUE(status.ok()) << status.message.chars;
      if (threads == 1) out = outputs.out.bytes(), lse = outputs.lse.bytes();
      EXPECT_EQ(outputs.out.bytes(), out) << threads << " threads";
      EXPECT_EQ(outputs.lse.bytes(), lse) << threads << " threads";
    }
  }
}

// fp32 tensors with memory, standard normal numbers.
struct Memory {
  std::vector<float> numbers;
  tw_tensor tensor;

  Memory(int64_t n0, int64_t n1, int64_t n2, int64_t n3, unsigned seed) : numbers(n0 * n1 * n2 * n3) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float& x : numbers) x = normal(random);
    tensor = tw_tensor_of(numbers.data(), TW_F32, n0, n1, n2, n3);
  }
};

// Sequences in one packed call, and each by itself in a dense one over the same memory.
TEST_P(TiledForward, SameBitsWithoutBatchMates) {
  const std::vector<int32_t> offsets = {0, 5, 1305, 1305, 1400, 1777};
  const int64_t total = offsets.back(), heads = 6, heads_kv = 2, dim = 20;
  Memory q(1, total, heads, dim, 1), k(1, total, heads_kv, dim, 2), v(1, total, heads_kv, dim, 3);
  Memory together(1, total, heads, dim, 4), alone(1, total, heads, dim, 5);
  for (float& x : q.numbers) x *= 8;  // maxima rise by more than the lazy bound
  tw_attention a;
  TW_INIT(a);
  a.device_type = TW_CPU;
  a.flags = TW_CAUSAL | TW_BATCH_INVARIANT;
  a.q = q.tensor, a.k = k.tensor, a.v = v.tensor, a.out = together.tensor;
  a.cu_seqlens_q = a.cu_seqlens_k = tw_tensor_of(offsets.data(), TW_I32, std::ssize(offsets), 1, 1, 1);
  run(a);
  const auto part = [](Memory& whole, int64_t first, int64_t rows) {
    const int64_t* n = whole.tensor.shape;
    return tw_tensor_of(whole.numbers.data() + first * n[2] * n[3], TW_F32, 1, rows, n[2], n[3]);
  };
  for (int64_t b = 0; b + 1 < std::ssize(offsets); ++b) {
    const int64_t first = offsets[b], rows = offsets[b + 1] - first;
    TW_INIT(a);
    a.device_type = TW_CPU, a.threads = 1 + static_cast<int32_t>(b);
    a.flags = TW_CAUSAL | TW_BATCH_INVARIANT;
    a.q = part(q, first, rows), a.k = part(k, first, rows), a.v = part(v, first, rows);
    a.out = part(alone, first, rows);
    run(a);
  }
  EXPECT_EQ(std::memcmp(together.numbers.data(), alone.numbers.data(), total * heads * dim * sizeof(float)), 0);
}

TEST_P(TiledForward, AWorkspaceServesSmallerProblems) {
  std::mt19937_64 random(1);
  const auto up_to = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n + 1)); };
  for (int i = 0; i < 20000; ++i) {
    Problem large;
    large.type = Type::f32;
    large.heads_kv = 1 + up_to(7), large.heads = large.heads_kv * (1 + up_to(7));
    large.head_dim = 1 + up_to(511), large.value_dim = 1 + up_to(511);
    large.packed_q = true;
    large.batch = up_to(40), large.max_rows = up_to(5000), large.total_rows = up_to(large.batch * large.max_rows);
    Problem small = large;
    small.batch = up_to(large.batch), small.max_rows = up_to(large.max_rows);
    small.total_rows = up_to(std::min(large.total_rows, small.batch * small.max_rows));
    Settings settings;
    settings.workers = 1 + static_cast<int>(up_to(9));
    EXPECT_LE(kernel_->size(small, settings).workspace_bytes, kernel_->size(large, settings).workspace_bytes);
  }
}

TEST_P(TiledForward, MoreWorkersGetSmallerUnits) {
  Problem problem;
  problem.heads = problem.heads_kv = 1, problem.head_dim = problem.value_dim = 64;
  problem.batch = 1, problem.max_rows = problem.total_rows = 4096;
  Settings one, eight;
  eight.workers = 8;
  EXPECT_GE(kernel_->size(problem, one).query_rows, 4 * kernel_->size(problem, eight).query_rows);
}

// One query row of ones; key j scores scores[j]; v[j] = j.
struct OneRow {
  float one = 1, out = NAN, lse = NAN;
  std::vector<float> scores, values;
  tw_attention a;

  explicit OneRow(std::vector<float> s) : scores(std::move(s)) {
    const int64_t keys = std::ssize(scores);
    for (int64_t j = 0; j < keys; ++j) values.push_back(static_cast<float>(j));
    TW_INIT(a);
    a.device_type = TW_CPU;
    a.q = tw_tensor_of(&one, TW_F32, 1, 1, 1, 1);
    a.k = tw_tensor_of(scores.data(), TW_F32, 1, keys, 1, 1);
    a.v = tw_tensor_of(values.data(), TW_F32, 1, keys, 1, 1);
    a.out = tw_tensor_of(&out, TW_F32, 1, 1, 1, 1);
    a.lse = tw_tensor_of(&lse, TW_F32, 1, 1, 1, 1);
  }
};

TEST_P(TiledForward, ScoresMayComeNearTheLargestFloat) {
  OneRow mixed({-3e38f, 3e38f, 0});
  run(mixed.a);
  EXPECT_EQ(mixed.out, 1);
  EXPECT_EQ(mixed.lse, 3e38f);
  OneRow lowest({-3.4e38f, -3.4e38f, -3.4e38f});
  run(lowest.a);
  EXPECT_FLOAT_EQ(lowest.out, 1);
  EXPECT_EQ(lowest.lse, -3.4e38f);
}

TEST_P(TiledForward, ScaleMayBeAnyNumber) {
  const float ln2 = std::log(2.0f);
  struct {
    float scale, out, lse;
  } const rows[] = {{-1, 0.5f, ln2},    {0, 1, std::log(3.0f)}, {1e-30f, 1, std::log(3.0f)},
                    {1e30f, 2, 64e30f}, {-1e30f, 0.5f, ln2},    {3e38f, 2, INFINITY}};
  for (const auto& row : rows) {
    OneRow call({0, 0, row.scale == 3e38f ? 1.0f : 64.0f});
    if (row.scale == 3e38f) call.scores = {0, 0, 1}, call.a.k.data = call.scores.data();
    call.a.flags = TW_SOFTMAX_SCALE;
    call.a.softmax_scale = row.scale;
    run(call.a);
    EXPECT_FLOAT_EQ(call.out, row.out) << "scale " << row.scale;
    EXPECT_FLOAT_EQ(call.lse, row.scale == 3e38f ? 3e38f : row.lse) << "scale " << row.scale;
  }
}

// An empty side hands the other on, bit for bit.
TEST_P(TiledForward, PriorInPlace) {
  for (const bool keys : {false, true}) {
    for (const bool prior : {false, true}) {
      OneRow call({0.3f, 0.7f});
      OneRow plain = call;
      plain.a.out.data = &plain.out, plain.a.lse.data = &plain.lse;
      run(plain.a);
      int32_t used = keys ? 2 : 0;
      call.out = prior ? 7.1f : 0, call.lse = prior ? 0.9f : -INFINITY;
      call.a.out.data = &call.out, call.a.lse.data = &call.lse;
      call.a.prior_out = call.a.out, call.a.prior_lse = call.a.lse;
      call.a.seqused_k = tw_tensor_of(&used, TW_I32, 1, 1, 1, 1);
      run(call.a);
      if (keys && prior) {
        const double own = std::exp(plain.lse), other = std::exp(0.9f);
        EXPECT_FLOAT_EQ(call.out, (own * plain.out + other * 7.1f) / (own + other));
        EXPECT_FLOAT_EQ(call.lse, std::log(own + other));
      } else {
        EXPECT_EQ(call.out, keys ? plain.out : prior ? 7.1f : 0);
        EXPECT_EQ(call.lse, keys ? plain.lse : prior ? 0.9f : -INFINITY);
      }
    }
  }
}

// Quiet and signalling, of both signs, with payloads.
TEST_P(TiledForward, ANaNScoreReachesItsRow) {
  for (const uint32_t bits : {0x7fc00000u, 0xffc00000u, 0x7fc00001u, 0xffffffffu, 0x7f800001u, 0xff8001ffu}) {
    OneRow call({0, 1, std::bit_cast<float>(bits), 2, 3, 4, 5, 6});
    run(call.a);
    EXPECT_TRUE(std::isnan(call.out)) << std::hex << bits;
    EXPECT_TRUE(std::isnan(call.lse)) << std::hex << bits;
  }
}

}  // namespace
}  // namespace tilewise::cases
