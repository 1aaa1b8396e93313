// What no sequence owns (docs/contract.md C1): rows and keys past their lengths or past the last offset.
#include <gtest/gtest.h>

#include <limits>

#include "api_call.h"

namespace tilewise::test {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();

using Floats = std::vector<float>;

Floats zeros(int64_t count) { return Floats(static_cast<size_t>(count), 0.0f); }

TEST(Unowned, RowsAndKeysPastTheirLengths) {
  Call c;
  c.a.seqused_q = c.extra(TW_I32, std::vector<int32_t>{2, 0});
  static const int32_t used_k[] = {4, 0};
  c.a.seqused_k = tw_tensor_of(used_k, TW_I32, 2, 1, 1, 1);
  static const float sink[] = {1, 2, 3, 4};
  c.a.sink = tw_tensor_of(sink, TW_F32, 4, 1, 1, 1);
  ASSERT_EQ(c.forward(), TW_OK) << tw_last_error();
  ASSERT_EQ(c.backward(), TW_OK) << tw_last_error();
  const auto row = [](const Floats& t, int64_t b, int64_t i, int64_t rows, int64_t width) {
    const auto begin = t.begin() + (b * rows + i) * width;
    return Floats(begin, begin + width);
  };
  for (const auto& [b, i] : {std::pair{0, 2}, {1, 0}, {1, 1}, {1, 2}}) {
    EXPECT_EQ(row(c.out, b, i, Call::kSq, Call::kH * Call::kDv), zeros(Call::kH * Call::kDv));
    EXPECT_EQ(row(c.dq, b, i, Call::kSq, Call::kH * Call::kD), zeros(Call::kH * Call::kD));
    for (int64_t h = 0; h < Call::kH; ++h) {
      EXPECT_EQ(c.lse[static_cast<size_t>((b * Call::kH + h) * Call::kSq + i)], kEmpty) << "whatever the sink";
    }
  }
  for (const auto& [b, j] : {std::pair{0, 4}, {1, 0}, {1, 4}}) {
    EXPECT_EQ(row(c.dk, b, j, Call::kSk, Call::kHk * Call::kD), zeros(Call::kHk * Call::kD));
    EXPECT_EQ(row(c.dv, b, j, Call::kSk, Call::kHk * Call::kDv), zeros(Call::kHk * Call::kDv));
  }
}

TEST(Unowned, AccumulatedGradientsStay) {
  Call c;
  c.a.seqused_q = c.a.seqused_k = c.extra(TW_I32, std::vector<int32_t>{2, 0});
  ASSERT_EQ(c.forward(), TW_OK) << tw_last_error();
  c.g.flags = TW_GRAD_ACCUMULATE;
  ASSERT_EQ(c.backward(), TW_OK) << tw_last_error();
  EXPECT_EQ(c.dq.back(), kUntouched);
  EXPECT_EQ(c.dk.back(), kUntouched);
  EXPECT_EQ(c.dv.back(), kUntouched);
  EXPECT_NE(c.dq.front(), kUntouched);
}

TEST(Unowned, PackedGapsAreCleared) {
  Call c;
  for (tw_tensor* t : {&c.a.q, &c.a.k, &c.a.v, &c.a.out, &c.a.lse}) t->shape[0] = 1;
  static const int32_t offsets_q[] = {0, 2, 2}, offsets_k[] = {0, 4, 5}, used_q[] = {1, 0};
  c.a.cu_seqlens_q = tw_tensor_of(offsets_q, TW_I32, 3, 1, 1, 1);
  c.a.cu_seqlens_k = tw_tensor_of(offsets_k, TW_I32, 3, 1, 1, 1);
  c.a.seqused_q = tw_tensor_of(used_q, TW_I32, 2, 1, 1, 1);
  ASSERT_EQ(c.forward(), TW_OK) << tw_last_error();
  constexpr int64_t kWidth = Call::kH * Call::kDv;
  EXPECT_NE(c.out[0], 0.0f);
  EXPECT_EQ(Floats(c.out.begin() + kWidth, c.out.begin() + 3 * kWidth), zeros(2 * kWidth));
  EXPECT_EQ(c.lse[1], kEmpty);
  EXPECT_EQ(c.lse[2], kEmpty);
  EXPECT_EQ(c.out[3 * kWidth], kUntouched) << "the next row of the tensor that was not given";
}

}  // namespace
}  // namespace tilewise::test
