// tilewise.hpp: the C++ shell does what the C interface does, and checks that spans are long enough.
#include <gtest/gtest.h>

#include <cmath>

#include "api_call.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::test {
namespace {

constexpr int64_t kB = Call::kB, kSq = Call::kSq, kSk = Call::kSk, kH = Call::kH, kHk = Call::kHk, kD = Call::kD;
constexpr int64_t kDv = Call::kDv;

Attention attention_of(Call& c) {
  return {.q = {c.q, kB, kSq, kH, kD},
          .k = {c.k, kB, kSk, kHk, kD},
          .v = {c.v, kB, kSk, kHk, kDv},
          .out = {c.out, kB, kSq, kH, kDv},
          .lse = {c.lse, kB, kH, kSq},
          .softcap = 15,
          .causal = true,
          .window_left = 2};
}

Gradients gradients_of(Call& c) {
  return {.dout = {c.dout, kB, kSq, kH, kDv},
          .dq = {c.dq, kB, kSq, kH, kD},
          .dk = {c.dk, kB, kSk, kHk, kD},
          .dv = {c.dv, kB, kSk, kHk, kDv}};
}

void set_the_same(Call& c) {
  c.a.softcap = 15;
  c.a.flags = TW_CAUSAL | TW_WINDOW_LEFT;
  c.a.window_left = 2;
}

TEST(Shell, ComputesWhatTheCInterfaceComputes) {
  Call c, shell;
  set_the_same(c);
  ASSERT_EQ(c.forward(), TW_OK);
  ASSERT_EQ(c.backward(), TW_OK);
  const Attention attention = attention_of(shell);
  ASSERT_TRUE(forward(attention));
  ASSERT_TRUE(backward(attention, gradients_of(shell)));
  EXPECT_EQ(shell.out, c.out);
  EXPECT_EQ(shell.lse, c.lse);
  EXPECT_EQ(shell.dq, c.dq);
  EXPECT_EQ(shell.dk, c.dk);
  EXPECT_EQ(shell.dv, c.dv);
}

TEST(Shell, PlansAndRuns) {
  Call once, planned;
  ASSERT_TRUE(forward(attention_of(once)));
  ASSERT_TRUE(backward(attention_of(once), gradients_of(once)));
  const Attention attention = attention_of(planned);
  AttentionPlan forward_plan, backward_plan;
  plan_forward(attention, forward_plan).or_throw();
  plan_backward(attention, gradients_of(planned), backward_plan).or_throw();
  EXPECT_NE(std::string(forward_plan.kernel()).find(".forward"), std::string::npos);
  std::vector<std::byte> memory(std::max(forward_plan.workspace_bytes, backward_plan.workspace_bytes) + 256);
  const Exec exec{.workspace = aligned(memory)};
  EXPECT_EQ(reinterpret_cast<uintptr_t>(exec.workspace.data()) % 256, 0u);
  run(forward_plan, attention, exec).or_throw();
  run(backward_plan, attention, gradients_of(planned), exec).or_throw();
  EXPECT_EQ(once.out, planned.out);
  EXPECT_EQ(once.dk, planned.dk);
}

TEST(Shell, PlansWithoutMemory) {
  const tw_tensor none = tw_tensor_of(nullptr, TW_F32, 1, 4, 2, 8);
  AttentionPlan plan;
  const Attention attention{.q = none, .k = none, .v = none, .out = none};
  EXPECT_TRUE(plan_forward(attention, plan));
}

TEST(Shell, GivesAResultOrThrows) {
  Call c;
  Attention attention = attention_of(c);
  attention.threads = -1;
  const Result result = forward(attention);
  EXPECT_FALSE(result);
  EXPECT_EQ(result.status, TW_INVALID_ARGUMENT);
  EXPECT_EQ(result.message, "threads is -1: must not be negative");
  try {
    forward(attention).or_throw();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), TW_INVALID_ARGUMENT);
    EXPECT_STREQ(error.what(), "threads is -1: must not be negative");
  }
}

TEST(Shell, NamesTheSpanThatIsTooShort) {
  Call c;
  Attention attention = attention_of(c);
  attention.v = {std::span(c.v).first(c.v.size() - 1), kB, kSk, kHk, kDv};
  EXPECT_EQ(forward(attention).message, "v: its span is shorter than its shape");
  attention = attention_of(c);
  attention.k = TensorView(std::span(c.k).first(3), kB, kHk, kSk, kD).swapped(1, 2);
  EXPECT_EQ(forward(attention).message, "k: its span is shorter than its shape");
  attention.k = {c.k, int64_t{1} << 40, int64_t{1} << 40, 1, 1};
  EXPECT_EQ(forward(attention).message, "k: its span is shorter than its shape") << "no overflow";
  attention = attention_of(c);
  Gradients gradients = gradients_of(c);
  gradients.dk = {std::span(c.dk).first(1), kB, kSk, kHk, kD};
  EXPECT_EQ(backward(attention, gradients).message, "dk: its span is shorter than its shape");
  EXPECT_TRUE(c.forward_is_untouched() && c.backward_is_untouched());
}

TEST(Shell, WritesNothingConst) {
  Call c;
  const std::vector<float>&out = c.out, &dv = c.dv;
  Attention attention = attention_of(c);
  attention.out = {out, kB, kSq, kH, kDv};
  EXPECT_EQ(forward(attention).message, "out: its span is const but the call writes it");
  Gradients gradients = gradients_of(c);
  EXPECT_TRUE(backward(attention, gradients)) << "which only reads out";
  gradients.dv = {dv, kB, kSk, kHk, kDv};
  EXPECT_EQ(backward(attention, gradients).message, "dv: its span is const but the call writes it");
}

TEST(Shell, TakesConstInputsAndEveryType) {
  const std::vector<float> q(8, 1.0f);
  EXPECT_EQ(TensorView(q, 1, 1, 1, 8).dtype, TW_F32);
  std::vector<Fp16> half(8);
  EXPECT_EQ(TensorView(half, 8).dtype, TW_F16);
  std::array<Bf16, 8> brain{};
  EXPECT_EQ(TensorView(brain, 8).dtype, TW_BF16);
  bool mask[4] = {};
  EXPECT_EQ(TensorView(mask, 2, 2).dtype, TW_BOOL);
  EXPECT_FALSE(TensorView(mask, 3, 2).fits);
  const std::vector<int32_t> lengths(3);
  EXPECT_EQ(TensorView(std::span(lengths), 3).dtype, TW_I32);
  const std::vector<int64_t> state(2);
  EXPECT_EQ(TensorView(state, 2).dtype, TW_I64);
  EXPECT_EQ(TensorView().dtype, TW_NONE);
}

TEST(Shell, FlagsFollowTheFields) {
  const Attention none{};
  EXPECT_EQ(shell::c_struct(none).flags, 0u);
  const Attention all{.deterministic = true,
                      .batch_invariant = true,
                      .softmax_scale = 0.0f,
                      .causal = true,
                      .top_left = true,
                      .mask_tail = true,
                      .window_left = 0,
                      .window_right = 3};
  const tw_attention c = shell::c_struct(all);
  EXPECT_EQ(c.flags, TW_DETERMINISTIC | TW_BATCH_INVARIANT | TW_SOFTMAX_SCALE | TW_CAUSAL | TW_TOP_LEFT | TW_MASK_TAIL |
                         TW_WINDOW_LEFT | TW_WINDOW_RIGHT);
  EXPECT_EQ(c.window_right, 3);
  EXPECT_EQ(shell::c_struct(Gradients{.accumulate = true}).flags, TW_GRAD_ACCUMULATE);
}

struct TwoParts {
  const std::vector<float> parts = std::vector<float>(2 * 4, 3.0f), lse_parts = std::vector<float>(2, 0.0f);
  std::vector<float> out = std::vector<float>(4), lse = std::vector<float>(1);

  PartialResults results() {
    return {.out_parts = {parts, 1, 1, 1, 4},
            .lse_parts = {lse_parts, 1, 1, 1},
            .parts = 2,
            .out_part_stride = 4,
            .lse_part_stride = 1,
            .out = {out, 1, 1, 1, 4},
            .lse = {lse, 1, 1, 1}};
  }
};

TEST(Shell, Merges) {
  TwoParts two;
  merge(two.results()).or_throw();
  EXPECT_EQ(two.out, std::vector<float>(4, 3.0f));
  EXPECT_FLOAT_EQ(two.lse[0], std::log(2.0f));
}

TEST(Shell, SpansHoldAllParts) {
  TwoParts two;
  PartialResults p = two.results();
  const PartialResults good = p;
  p.parts = 5;
  EXPECT_EQ(merge(p).message, "out_parts: its span does not hold all parts");
  p = good, p.out_part_stride = 5;
  EXPECT_EQ(merge(p).message, "out_parts: its span does not hold all parts");
  p = good, p.out_part_stride = -4;
  EXPECT_EQ(merge(p).message, "out_parts: its span does not hold all parts");
  p = good, p.lse_part_stride = 2;
  EXPECT_EQ(merge(p).message, "lse_parts: its span does not hold all parts");
  p = good, p.out_parts = TensorView(p.out_parts).swapped(0, 1), p.parts = 3;
  EXPECT_EQ(merge(p).message, "out_parts: its span does not hold all parts");
  p = good, p.parts = 1, p.out_part_stride = 1000;
  EXPECT_TRUE(merge(p)) << "one part has no stride";
  p = good, p.parts = 9, p.out_part_stride = p.lse_part_stride = 0;
  EXPECT_TRUE(merge(p)) << "the same part nine times";
}

}  // namespace
}  // namespace tilewise::test
