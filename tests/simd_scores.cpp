// Softcap, bias, ALiBi, mask and dropout of a panel against scalar code.
#include "core/philox.h"
#include "simd_fixture.h"

namespace tilewise::cpu {
namespace {

Tensor tensor(void* data, Type type, int64_t s0, int64_t s1, int64_t s2, int64_t s3) {
  Tensor t;
  t.data = static_cast<char*>(data), t.type = type;
  const int64_t stride[] = {s0, s1, s2, s3};
  std::copy(stride, stride + 4, t.stride);
  return t;
}

class SimdScores : public SimdTest {
 protected:
  static constexpr int64_t kRows = 12, kHeads = 2, kKeys = 70;

  void SetUp() override {
    SimdTest::SetUp();
    if (IsSkipped()) return;  // and `ops` says nothing
    heads.resize(ops.tile_cols), rows.resize(ops.tile_cols);
    sequence.index = 1, sequence.rows = kRows, sequence.keys = kKeys;
    for (int i = 0; i < ops.tile_cols; ++i) heads[i] = i % kHeads, rows[i] = i / kHeads % kRows;
  }

  Panel panel(int64_t first_key, int64_t count) const {
    return {problem, sequence, heads.data(), rows.data(), first_key, count};
  }

  // Calls check(value, lane, key) for all of a run; what lies past it must be left alone.
  template <class Fill, class Check>
  void each(int64_t first_key, int64_t count, Fill fill, Check check) {
    std::vector<float> got((count + ops.lanes) * ops.tile_cols, NAN);
    fill(panel(first_key, count), got.data());
    for (int64_t j = 0; j < count; ++j)
      for (int i = 0; i < ops.tile_cols; ++i) check(got[j * ops.tile_cols + i], i, first_key + j);
    for (size_t i = count * ops.tile_cols; i < got.size(); ++i) EXPECT_TRUE(std::isnan(got[i]));
  }

  // Every length up to 20 from several first keys.
  template <class Check>
  void each_added(Check check) {
    const auto fill = [&](const Panel& panel, float* to) { ops.fill_added(panel, to); };
    for (int64_t first_key : {0, 1, 13, 50})
      for (int64_t count = 1; count <= 20; ++count) each(first_key, count, fill, check);
  }

  Problem problem;
  Sequence sequence;
  std::vector<int64_t> heads, rows;
};

TEST_P(SimdScores, BiasOfEveryTypeAndStride) {
  struct Strides {
    int64_t sequence, head, row, key;
  };
  const Strides all[] = {{2 * kRows * kKeys, kRows * kKeys, kKeys, 1},
                         {0, 0, kKeys, 1},
                         {0, 0, 0, 1},
                         {0, 1, 2, 0},
                         {0, 1, 3 * kHeads * kKeys, 3 * kHeads}};
  std::vector<uint32_t> data(3 * kHeads * kRows * kKeys + 1000);
  const ElementOps* elements[] = {&ops.f32, &ops.f16, &ops.bf16};
  const Type types[] = {Type::f32, Type::f16, Type::bf16};
  for (int type = 0; type < 3; ++type) {
    const int64_t size = type == 0 ? 4 : 2;
    auto* bytes = reinterpret_cast<char*>(data.data());
    for (size_t i = 0; i + ops.lanes < data.size(); i += ops.lanes) {
      elements[type]->store(bytes + i * size, whole_numbers(ops.lanes).data());
    }
    std::vector<float> want(ops.lanes);
    for (const Strides& s : all) {
      problem.bias = tensor(bytes, types[type], s.sequence, s.head, s.row, s.key);
      each_added([&](float got, int lane, int64_t key) {
        elements[type]->load_first(bytes + problem.bias.offset(1, heads[lane], rows[lane], key) * size, 1, want.data());
        EXPECT_EQ(got, want[0]);
      });
    }
  }
}

TEST_P(SimdScores, BiasIsReadToItsLastByteOnly) {
  problem.bias = tensor(nullptr, Type::bf16, 0, kRows * kKeys, kKeys, 1);
  const GuardedBytes bytes(kHeads * kRows * kKeys * 2);
  problem.bias.data = bytes.data();
  rows.assign(ops.tile_cols, kRows - 1);
  const auto fill = [&](const Panel& panel, float* to) { ops.fill_added(panel, to); };
  for (int64_t count = 1; count <= 20; ++count) {
    each(kKeys - count, count, fill, [](float got, int, int64_t) { EXPECT_EQ(got, 0); });
  }
}

// Two rows 3 * 2^30 elements apart in address space that costs nothing until it is touched.
TEST_P(SimdScores, BiasStridesPast32Bits) {
  const int64_t stride = int64_t{3} << 30, bytes = (stride + kKeys) * 2;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(data, MAP_FAILED);
  problem.bias = tensor(data, Type::bf16, 0, stride, 0, 1);
  static_cast<uint16_t*>(data)[stride + 2] = 0x4000;  // 2
  const auto fill = [&](const Panel& panel, float* to) { ops.fill_added(panel, to); };
  each(0, 5, fill, [&](float got, int lane, int64_t key) { EXPECT_EQ(got, heads[lane] == 1 && key == 2 ? 2 : 0); });
  munmap(data, bytes);
}

TEST_P(SimdScores, MaskWinsOverAnyBias) {
  std::vector<uint8_t> live(kRows * kKeys);
  for (auto& byte : live) byte = random() % 2;
  std::vector<float> bias(kKeys);
  const float values[] = {INFINITY, -INFINITY, NAN, 1, 0};
  for (int64_t j = 0; j < kKeys; ++j) bias[j] = values[j % 5];
  problem.bias = tensor(bias.data(), Type::f32, 0, 0, 0, 1);
  for (const auto& [row, key] :
       {std::pair{kKeys, int64_t{1}}, std::pair{int64_t{1}, kRows}, std::pair{int64_t{1}, int64_t{0}}})
    for (int64_t first : {0, 7, 40}) {
      problem.mask = tensor(live.data(), Type::boolean, 0, 0, row, key);
      sequence.mask_first_key = first;
      each_added([&, row = row, key = key](float got, int lane, int64_t j) {
        const bool dead = j >= first && !live[rows[lane] * row + (j - first) * key];
        const float want = dead ? -INFINITY : bias[j];
        EXPECT_TRUE(std::isnan(want) ? std::isnan(got) : got == want) << lane << ' ' << j << ' ' << got;
      });
    }
}

TEST_P(SimdScores, AlibiDistancesAreExact) {
  std::vector<float> slopes = {0.5f, -2};
  problem.alibi_slopes = tensor(slopes.data(), Type::f32, 0, 1, 0, 0);
  std::vector<int32_t> q_positions(kRows), k_positions(kKeys);
  for (auto& p : q_positions) p = static_cast<int32_t>(random());
  int64_t position = INT32_MIN + 1000;
  for (auto& p : k_positions) p = static_cast<int32_t>(position), position += static_cast<int64_t>(random() % 60000000);
  q_positions[3] = k_positions[20], q_positions[4] = INT32_MAX, q_positions[5] = INT32_MIN;
  for (bool given : {false, true}) {
    problem.q_positions = problem.k_positions = {};
    if (given) {
      problem.q_positions = tensor(q_positions.data(), Type::i32, 0, 1, 0, 0);
      problem.k_positions = tensor(k_positions.data(), Type::i32, 0, 1, 0, 0);
    }
    each_added([&](float got, int lane, int64_t key) {
      const int64_t p = row_position(problem, sequence, rows[lane]), k = key_position(problem, sequence, key);
      const float distance = static_cast<float>(p < k ? k - p : p - k);
      EXPECT_EQ(got, -slopes[heads[lane]] * distance) << p << ' ' << k;
    });
  }
}

TEST_P(SimdScores, DropoutDrawsTheContractsBits) {
  problem.dropout = {.threshold = 20000, .keep_scale = 1.25f, .key = 0x299f31d0a4093822};
  std::vector<int32_t> q_positions(kRows), k_positions(kKeys);
  for (auto& p : q_positions) p = static_cast<int32_t>(random());
  for (int64_t j = 0; j < kKeys; ++j) k_positions[j] = static_cast<int32_t>(j / 3 * 5 - 20 + j % 2);
  const auto fill = [&](const Panel& panel, float* to) { ops.fill_kept(panel, to); };
  for (bool given : {false, true}) {
    if (given) {
      problem.q_positions = tensor(q_positions.data(), Type::i32, 0, 1, 0, 0);
      problem.k_positions = tensor(k_positions.data(), Type::i32, 0, 1, 0, 0);
    }
    for (int64_t first_key : {0, 5, 31})
      for (int64_t count : {1, 2, 8, 9, 30}) {
        each(first_key, count, fill, [&](float got, int lane, int64_t key) {
          const int64_t p = row_position(problem, sequence, rows[lane]), k = key_position(problem, sequence, key);
          const uint32_t bits = dropout_bits(problem.dropout.key, k, p, heads[lane], sequence.index);
          EXPECT_EQ(got, bits < 20000 ? 0 : 1.25f) << p << ' ' << k;
        });
      }
  }
}

TEST_P(SimdScores, SoftcapAndItsSlope) {
  problem.softcap = 30;
  std::vector<float> x(ops.lanes), capped(ops.lanes), slope(ops.lanes);
  for (double score : {0., 1e-30, 1e-3, -1.5, 12., 29., -80., 300., 1e30, double{-INFINITY}, double{INFINITY}}) {
    x.assign(ops.lanes, static_cast<float>(score));
    ops.softcap(problem, x.data(), capped.data(), slope.data());
    const double t = std::tanh(score / 30);
    for (int i = 0; i < ops.lanes; ++i) {
      EXPECT_NEAR(capped[i], 30 * t, std::fabs(30 * t) * 6e-7) << score;
      EXPECT_NEAR(slope[i], 1 - t * t, 1e-6) << score;
    }
  }
}

TEST_P(SimdScores, ADeadPairStaysDead) {
  for (float score : {0.f, INFINITY, -INFINITY, NAN, 1e38f}) {
    std::vector<float> scores(ops.lanes, score), dead(ops.lanes, -INFINITY), got(ops.lanes);
    ops.add_terms(scores.data(), dead.data(), got.data());
    for (float s : got) EXPECT_EQ(s, -INFINITY) << score;
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, SimdScores, testing::ValuesIn(code_of_this_build()), isa_name);

}  // namespace
}  // namespace tilewise::cpu
