// What kernels for GPUs make of numbers in device memory that nobody has checked: whatever they are, rows and keys lie
// within their tensors. The functions that say where are those of every kernel.
#include <gtest/gtest.h>

#include <vector>

#include "core/find_keys.h"
#include "core/numbers.h"

namespace tilewise {
namespace {

constexpr int64_t kBatch = 5, kTokens = 40;
constexpr int32_t kWild[] = {INT32_MIN, -1, 0, 7, 39, 40, 41, INT32_MAX};

// A table of numbers, by turns those of kWild.
class Table {
 public:
  explicit Table(std::vector<int64_t> shape) : shape_(std::move(shape)) { shape_.resize(4, 1); }
  void set(std::vector<int32_t> numbers) { numbers_ = std::move(numbers); }
  void fill(uint64_t draw) {
    numbers_.resize(static_cast<size_t>(shape_[0] * shape_[1] * shape_[2]));
    for (int32_t& x : numbers_) {
      draw = draw * 6364136223846793005u + 1442695040888963407u;
      x = kWild[draw >> 61];
    }
  }
  Tensor tensor() {
    return {.data = reinterpret_cast<char*>(numbers_.data()),
            .shape = {shape_[0], shape_[1], shape_[2], 1},
            .stride = {shape_[1] * shape_[2], shape_[2], 1, 0},
            .type = Type::i32};
  }

 private:
  std::vector<int64_t> shape_;
  std::vector<int32_t> numbers_;
};

Problem problem_of(bool packed) {
  Problem p;
  p.batch = kBatch, p.heads = p.heads_kv = 2;
  p.packed_q = p.packed_k = packed;
  p.q.shape[0] = p.k.shape[0] = packed ? 1 : kBatch;
  p.q.shape[1] = p.k.shape[1] = kTokens;
  p.total_rows = p.total_keys = packed ? kTokens : kBatch * kTokens;
  p.max_rows = p.max_keys = kTokens - 3;
  return p;
}

void expect_inside(const Problem& p, const Sequence& s) {
  ASSERT_TRUE(s.q_slot >= 0 && s.q_slot < p.q.shape[0]);
  ASSERT_TRUE(s.k_slot >= 0 && s.k_slot < p.k.shape[0]);
  ASSERT_TRUE(s.rows >= 0 && s.rows <= p.max_rows && s.first_row >= 0 && s.first_row + s.rows <= kTokens);
  ASSERT_TRUE(s.keys >= 0 && s.keys <= p.max_keys && s.first_key >= 0 && s.first_key + s.keys <= kTokens);
  ASSERT_TRUE(s.left_pad >= 0 && s.left_pad <= s.keys);
}

TEST(BadNumbers, SequencesLieWithinTheirTensors) {
  Table q({kBatch + 1}), k({kBatch + 1}), used_q({kBatch}), used_k({kBatch}), pad({kBatch}), index({kBatch});
  for (uint64_t draw = 0; draw < 20000; ++draw) {
    Problem p = problem_of(draw % 2);
    uint64_t number = draw * 6;
    for (Table* table : {&q, &k, &used_q, &used_k, &pad, &index}) table->fill(number++);
    if (p.packed_q) p.cu_seqlens_q = q.tensor(), p.cu_seqlens_k = k.tensor();
    if (draw % 3) p.seqused_q = used_q.tensor(), p.seqused_k = used_k.tensor();
    if (draw % 5) p.leftpad_k = pad.tensor();
    if (!p.packed_k && draw % 7) p.batch_index_k = index.tensor();
    for (int64_t b = 0; b < kBatch; ++b) ASSERT_NO_FATAL_FAILURE(expect_inside(p, find_sequence(p, b))) << draw;
  }
}

TEST(BadNumbers, LiveKeysAreKeysOfTheSequence) {
  Table rows({1, kTokens}), keys({1, kTokens}), begin({1, 2, kTokens}), end({1, 2, kTokens});
  for (uint64_t draw = 0; draw < 3000; ++draw) {
    Problem p = problem_of(false);
    p.batch = p.q.shape[0] = p.k.shape[0] = 1;
    uint64_t number = draw * 4;
    for (Table* table : {&rows, &keys, &begin, &end}) table->fill(number++);
    if (draw % 2) p.q_positions = rows.tensor();
    if (draw % 4 == 1) p.k_positions = keys.tensor();
    if (draw % 3 == 0) p.key_begin = begin.tensor();
    if (draw % 3 < 2) p.key_end = end.tensor();
    p.causal = draw % 5 == 0, p.top_left = draw % 10 == 0;
    for (const int64_t size : {kUnbounded, int64_t{0}, int64_t{6}, int64_t{1} << 40, INT64_MAX}) {
      p.window_left = size, p.window_right = draw % 7 ? kUnbounded : size;
      p.attention_chunk = draw % 3 ? 0 : size == kUnbounded ? 0 : size;
      const Sequence s = find_sequence(p, 0);
      for (int64_t i = 0; i < p.max_rows + 2; ++i) {
        const KeyRange live = find_live_keys(p, s, draw % 2, i);
        ASSERT_TRUE(live.lo >= 0 && live.lo <= live.hi && live.hi <= s.keys) << draw << ", row " << i;
      }
    }
  }
}

// A token is that of one sequence at most, and those of a sequence come before those of the next one.
TEST(BadNumbers, SequencesThatOverlapKeepTokensOfTheirOwn) {
  Table offsets({kBatch + 1});
  for (uint64_t draw = 0; draw < 50000; ++draw) {
    offsets.fill(draw);
    Problem p = problem_of(true);
    p.cu_seqlens_q = p.cu_seqlens_k = offsets.tensor();
    int64_t end_before = 0;
    for (int64_t b = 0; b < kBatch; ++b) {
      Sequence s = find_sequence(p, b);
      const int64_t first = s.first_row, end = first + s.rows;
      keep_own(p.cu_seqlens_q, p.batch, b, s.first_row, s.rows);
      ASSERT_NO_FATAL_FAILURE(expect_inside(p, s));
      ASSERT_TRUE(s.first_row >= first && s.first_row + s.rows <= end);
      if (s.rows == 0) continue;
      ASSERT_GE(s.first_row, end_before) << draw << ", sequence " << b;
      end_before = s.first_row + s.rows;
    }
  }
}

TEST(BadNumbers, RightOffsetsLeaveAllTokensToTheirSequence) {
  Table offsets({kBatch + 1});
  for (const std::vector<int32_t>& numbers :
       {std::vector<int32_t>{0, 3, 3, 20, 21, 40}, {0, 0, 0, 0, 0, 40}, {0, 36, 36, 36, 36, 36}, {2, 4, 5, 6, 7, 8}}) {
    offsets.set(numbers);
    Problem p = problem_of(true);
    p.cu_seqlens_q = p.cu_seqlens_k = offsets.tensor(), p.max_rows = kTokens;
    for (int64_t b = 0; b < kBatch; ++b) {
      Sequence s = find_sequence(p, b);
      const int64_t first = s.first_row, rows = s.rows;
      keep_own(p.cu_seqlens_q, p.batch, b, s.first_row, s.rows);
      EXPECT_EQ(s.rows, rows);
      if (rows > 0) EXPECT_EQ(s.first_row, first);
    }
  }
}

}  // namespace
}  // namespace tilewise
