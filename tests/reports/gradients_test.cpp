// Reports about backward passes, grouped heads, split keys and merges.
#include <cstring>

#include "reports/call.h"

namespace tilewise::reports {
namespace {

class Gradients : public EveryKernel {};
INSTANTIATE_TEST_SUITE_P(Reports, Gradients, testing::ValuesIn(kernels_here()), test_name);

// XunhaoLai/native-sparse-attention-triton#27: dk and dv use the group's size where the number of heads is meant.
TEST_P(Gradients, native_sparse_attention_27) {
  for (const auto& [heads, heads_kv] : {std::pair<int64_t, int64_t>{8, 2}, {6, 2}, {12, 3}, {9, 3}, {4, 4}, {4, 1}}) {
    Call c(Type::bf16, {.batch = 2, .seqlen_q = 130, .seqlen_k = 130, .heads = heads, .heads_kv = heads_kv});
    c.fill_normal(70);
    c.q.each([&](int64_t b, int64_t i, int64_t h, int64_t d) {
      c.q.set(c.q.at(b, i, h, d) * (1 + 0.2 * double(h)), b, i, h, d);
    });
    expect_like_reference(c, kernel());
  }
}

// ROCm/rocm-libraries#5888: key and value head counts that differ. Refused, naming both.
TEST_P(Gradients, rocm_libraries_5888) {
  Call c(Type::f32, {.seqlen_q = 8, .seqlen_k = 8, .heads = 32, .heads_kv = 8});
  c.v = Stored(Type::f32, {1, 8, 4, 64});
  const Status status = c.forward(kernel());
  EXPECT_EQ(status.code, TW_INVALID_ARGUMENT);
  EXPECT_TRUE(std::strstr(status.message.chars, "8") && std::strstr(status.message.chars, "4")) << status.message.chars;
}

// pytorch/pytorch#141218: no key heads crash by a division by zero.
TEST_P(Gradients, pytorch_141218) {
  for (const auto& [heads, heads_kv] : {std::pair<int64_t, int64_t>{8, 0}, {10, 4}, {2, 4}}) {
    Call c(Type::f32, {.seqlen_q = 8, .seqlen_k = 8, .heads = heads, .heads_kv = heads_kv});
    const Status status = c.forward(kernel());
    EXPECT_EQ(status.code, TW_INVALID_ARGUMENT);
    EXPECT_TRUE(std::strstr(status.message.chars, std::to_string(heads).c_str()) &&
                std::strstr(status.message.chars, std::to_string(heads_kv).c_str()))
        << status.message.chars;
  }
  Call empty(Type::f32, {.batch = 0, .seqlen_q = 8, .seqlen_k = 8, .heads = 4, .heads_kv = 2});
  RUN_OR_SKIP(empty.forward(kernel()));
  RUN_OR_SKIP(empty.backward(kernel()));
}

// Copies a tensor into another layout.
Stored laid_out(const Stored& from, Layout layout) {
  Stored to(from.type(), from.shape(), layout);
  from.each([&](int64_t a, int64_t b, int64_t c, int64_t d) { to.set(from.at(a, b, c, d), a, b, c, d); });
  return to;
}

// Dao-AILab/flash-attention#355 and ROCm/aotriton#236: dout is addressed as if it lay like out.
TEST_P(Gradients, flash_attention_355_aotriton_236) {
  Call c(Type::f16, {.seqlen_q = 33, .seqlen_k = 33, .heads = 4, .heads_kv = 4});
  c.fill_normal(71);
  RUN_OR_SKIP(c.forward(kernel()));
  RUN_OR_SKIP(c.backward(kernel()));
  for (const auto& [out_layout, dout_layout] :
       {std::pair{Layout::rows_outside, Layout::heads_outside}, std::pair{Layout::heads_outside, Layout::rows_outside},
        std::pair{Layout::rows_outside, Layout::gaps}}) {
    Call other = c;
    other.out = laid_out(c.out, out_layout), other.dout = laid_out(c.dout, dout_layout);
    RUN_OR_SKIP(other.backward(kernel()));
    EXPECT_TRUE(same_bits(c.dq, other.dq) && same_bits(c.dk, other.dk) && same_bits(c.dv, other.dv));
  }
  Call sliced = c;  // every second row of a larger tensor
  sliced.dout = Stored(Type::f16, {1, 66, 4, 64});
  c.dout.each(
      [&](int64_t a, int64_t i, int64_t h, int64_t d) { sliced.dout.set(c.dout.at(a, i, h, d), a, 2 * i, h, d); });
  sliced.adjust = [](tw_attention&, tw_attention_grad& g) { g.dout.shape[1] = 33, g.dout.stride[1] *= 2; };
  RUN_OR_SKIP(sliced.backward(kernel()));
  EXPECT_TRUE(same_bits(c.dq, sliced.dq) && same_bits(c.dk, sliced.dk) && same_bits(c.dv, sliced.dv));
}

// pytorch/pytorch#141147: a dout that repeats by stride 0. Along the last axis it is refused by name.
TEST_P(Gradients, pytorch_141147) {
  Call c(Type::f32, {.batch = 2, .seqlen_q = 20, .seqlen_k = 30, .heads = 4, .heads_kv = 2});
  c.fill_normal(72);
  RUN_OR_SKIP(c.forward(kernel()));
  Random random(73);
  Stored row(Type::f32, {1, 1, 1, 64});
  row.each([&](int64_t a, int64_t b, int64_t h, int64_t d) { row.set(random.normal(), a, b, h, d); });
  c.dout.each([&](int64_t b, int64_t i, int64_t h, int64_t d) { c.dout.set(row.at(0, 0, 0, d), b, i, h, d); });
  RUN_OR_SKIP(c.backward(kernel()));
  Call repeated = c;
  repeated.adjust = [&](tw_attention&, tw_attention_grad& g) {
    g.dout.data = row.view().data;
    g.dout.stride[0] = g.dout.stride[1] = g.dout.stride[2] = 0;
  };
  RUN_OR_SKIP(repeated.backward(kernel()));
  EXPECT_TRUE(same_bits(c.dq, repeated.dq) && same_bits(c.dk, repeated.dk) && same_bits(c.dv, repeated.dv));
  repeated.adjust = [](tw_attention&, tw_attention_grad& g) { g.dout.stride[3] = 0; };
  const Status status = repeated.backward(kernel());
  EXPECT_EQ(status.code, TW_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(status.message.chars, "dout"), nullptr) << status.message.chars;
}

// pytorch/pytorch#133671: two sides looked different because each drew its own dout. The same values in two layouts
// give the same gradients here.
TEST_P(Gradients, pytorch_133671) {
  Call c(Type::f32, {.batch = 2, .seqlen_q = 49, .seqlen_k = 49, .heads = 2, .heads_kv = 2, .head_dim = 32});
  c.fill_normal(74);
  expect_like_reference(c, kernel());
}

// Dao-AILab/flash-attention#2424: an option of the forward is lost on the way to the backward. Each alone and in pairs,
// against finite differences of the forward in fp64 arithmetic.
TEST_P(Gradients, flash_attention_2424) {
  struct Option {
    const char* name;
    std::function<void(Call&)> set;
  };
  Stored bias(Type::f32, {1, 2, 7, 7});
  Random random(75);
  bias.each([&](int64_t a, int64_t h, int64_t i, int64_t j) { bias.set(random.normal(), a, h, i, j); });
  const Stored slopes = floats({0.3, 0.1}), sinks = floats({0.5, -0.4}), used = int32s({5});
  const std::vector<Option> options{
      {"bias", [&](Call& c) { c.a.bias = bias.view(); }},
      {"window",
       [](Call& c) { c.a.flags |= TW_WINDOW_LEFT | TW_WINDOW_RIGHT, c.a.window_left = 2, c.a.window_right = 1; }},
      {"softcap", [](Call& c) { c.a.softcap = 1.5; }},
      {"alibi", [&](Call& c) { c.a.alibi_slopes = tw_tensor_of(slopes.view().data, TW_F32, 1, 2, 1, 1); }},
      {"sink", [&](Call& c) { c.a.sink = sinks.view(); }},
      {"scale", [](Call& c) { c.a.flags |= TW_SOFTMAX_SCALE, c.a.softmax_scale = -0.8F; }},
      {"seqused", [&](Call& c) { c.a.seqused_k = used.view(); }},
      {"dropout", [](Call& c) { c.a.dropout_p = 0.4F, c.a.dropout_seed = 3; }},
      {"causal", [](Call& c) { c.a.flags |= TW_CAUSAL; }}};
  for (size_t x = 0; x < options.size(); ++x)
    for (size_t y = x; y < options.size(); ++y) {
      Call c(Type::f32, {.seqlen_q = 7, .seqlen_k = 7, .heads = 2, .heads_kv = 1, .head_dim = 4});
      c.fill_normal(76);
      options[x].set(c), options[y].set(c);
      RUN_OR_SKIP(c.forward(kernel()));
      RUN_OR_SKIP(c.backward(kernel()));
      const auto loss = [&](const Call& at) {
        Call copy = at;
        EXPECT_TRUE(copy.forward("reference").ok());
        double sum = 0;
        copy.out.each([&](int64_t a, int64_t i, int64_t h, int64_t d) {
          sum += copy.out.at(a, i, h, d) * copy.dout.at(a, i, h, d);
        });
        return sum;
      };
      for (const auto& [input, gradient] :
           {std::pair{&Call::q, &Call::dq}, {&Call::k, &Call::dk}, {&Call::v, &Call::dv}})
        for (const int64_t i : {1, 4}) {
          Call up = c, down = c;
          const double at = (c.*input).at(0, i, 0, 2), step = 1.0 / 64;
          (up.*input).set(at + step, 0, i, 0, 2), (down.*input).set(at - step, 0, i, 0, 2);
          const double width = (up.*input).at(0, i, 0, 2) - (down.*input).at(0, i, 0, 2);
          EXPECT_NEAR((c.*gradient).at(0, i, 0, 2), (loss(up) - loss(down)) / width, 2e-3)
              << options[x].name << " with " << options[y].name << ", row " << i;
        }
    }
}

// Dao-AILab/flash-attention#1137: the gradient through lse is dropped.
TEST_P(Gradients, flash_attention_1137) {
  for (const bool out_too : {true, false}) {
    Call c(Type::f32, {.seqlen_q = 9, .seqlen_k = 9, .head_dim = 4});
    c.fill_normal(77);
    c.fill(c.dout, out_too ? 1 : 0);
    Stored dlse(Type::f32, {1, 1, 9, 1});
    for (int64_t i = 0; i < 9; ++i) dlse.set(3, 0, 0, i);
    c.g.dlse = dlse.view();
    RUN_OR_SKIP(c.forward(kernel()));
    RUN_OR_SKIP(c.backward(kernel()));
    const auto loss = [&](const Call& at) {
      Call copy = at;
      EXPECT_TRUE(copy.forward("reference").ok());
      double sum = 0;
      copy.lse.each([&](int64_t a, int64_t h, int64_t i, int64_t d) { sum += 3 * copy.lse.at(a, h, i, d); });
      if (out_too) copy.out.each([&](int64_t a, int64_t i, int64_t h, int64_t d) { sum += copy.out.at(a, i, h, d); });
      return sum;
    };
    for (const auto& [input, gradient] : {std::pair{&Call::q, &Call::dq}, {&Call::k, &Call::dk}}) {
      Call up = c, down = c;
      const double at = (c.*input).at(0, 3, 0, 1), step = 1.0 / 64;
      (up.*input).set(at + step, 0, 3, 0, 1), (down.*input).set(at - step, 0, 3, 0, 1);
      EXPECT_NEAR((c.*gradient).at(0, 3, 0, 1), (loss(up) - loss(down)) * 32, 2e-3);
    }
  }
}

// triton-lang/triton#4541: the backward is always causal.
TEST_P(Gradients, triton_4541) {
  for (const int64_t keys : {128, 90}) {
    Call c(Type::f16, {.seqlen_q = 128, .seqlen_k = keys});
    c.fill_normal(78);
    expect_like_reference(c, kernel());
  }
}

// pytorch/pytorch#41508: a row without keys spreads NaN to gradients that do not depend on it.
TEST_P(Gradients, pytorch_41508) {
  Call c(Type::f32, {.batch = 2, .seqlen_q = 4, .seqlen_k = 4, .head_dim = 1});
  c.fill_normal(79);
  c.a.flags = TW_CAUSAL | TW_TOP_LEFT | TW_WINDOW_LEFT, c.a.window_left = 1;
  const Stored used = int32s({4, 2});
  c.a.seqused_k = used.view();
  c.dout.each([&](int64_t b, int64_t i, int64_t h, int64_t d) {
    if (i > 1) c.dout.set(0, b, i, h, d);
  });
  expect_like_reference(c, kernel());
  if (IsSkipped()) return;
  expect_empty_row(c, 1, 3, 0);
  EXPECT_TRUE(all_finite(c.dq) && all_finite(c.dk) && all_finite(c.dv));
  EXPECT_EQ(c.dq.at(1, 3, 0, 0), 0);
}

// ROCm/rocm-libraries#12227: a sink is counted once for each split of the keys.
TEST_P(Gradients, rocm_libraries_12227) {
  for (const bool no_keys : {false, true}) {
    Call c(Type::f32, {.seqlen_q = 1, .seqlen_k = 4096});
    c.fill_normal(80);
    c.a.num_splits = 8;
    const Stored sink = floats({2}), used = int32s({0});
    c.a.sink = sink.view();
    c.a.flags = TW_WINDOW_LEFT | TW_WINDOW_RIGHT, c.a.window_left = 127, c.a.window_right = 0;
    if (no_keys) c.a.seqused_k = used.view();
    expect_like_reference(c, kernel());
    if (IsSkipped()) return;
    if (no_keys) expect_row(c, 0, 0, 0, 0, 2, 0);
  }
}

// flagos-ai/FlagGems#5235: the step that combines splits writes with the wrong row stride.
TEST_P(Gradients, flag_gems_5235) {
  for (const Layout layout : {Layout::rows_outside, Layout::heads_outside, Layout::gaps}) {
    Call c(Type::f32, {.seqlen_q = 4, .seqlen_k = 2048, .heads = 4, .heads_kv = 4}, layout);
    c.fill_normal(81);
    c.a.num_splits = 4;
    expect_like_reference(c, kernel(), false);
  }
}

// pytorch/pytorch#181645: lse to the wrong base.
TEST_P(Gradients, pytorch_181645) {
  Call c(Type::f32, {.seqlen_q = 16, .seqlen_k = 16});
  c.fill_normal(82);
  RUN_OR_SKIP(c.forward(kernel()));
  for (int64_t i = 0; i < 16; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < 16; ++j) {
      double score = 0;
      for (int64_t d = 0; d < 64; ++d) score += c.q.at(0, i, 0, d) * c.k.at(0, j, 0, d);
      sum += std::exp(score / 8);
    }
    EXPECT_NEAR(c.lse.at(0, 0, i), std::log(sum), 1e-5);
  }
}

// pytorch/pytorch#184122: a plan or cache that forgets an option answers with the result of another call.
TEST_P(Gradients, pytorch_184122) {
  Call c(Type::f32, {.seqlen_q = 20, .seqlen_k = 20});
  c.fill_normal(83);
  RUN_OR_SKIP(c.forward(kernel()));
  const std::vector<std::function<void(tw_attention&)>> changes{
      [](tw_attention& a) { a.flags = TW_SOFTMAX_SCALE, a.softmax_scale = 2; }, [](tw_attention& a) { a.softcap = 1; },
      [](tw_attention& a) { a.flags = TW_WINDOW_LEFT, a.window_left = 3; },
      [](tw_attention& a) { a.flags = TW_CAUSAL; }, [](tw_attention& a) { a.dropout_p = 0.5; }};
  for (const auto& change : changes) {
    Call other = c;
    change(other.a);
    RUN_OR_SKIP(other.forward(kernel()));
    EXPECT_GT(difference(c.out, other.out), 1e-3);
    expect_like_reference(other, kernel(), false);
  }
}

// Dao-AILab/flash-attention#2552: parts of dv are misplaced where the head sizes of q and v differ.
TEST_P(Gradients, flash_attention_2552) {
  for (const auto& [dim, value_dim] :
       {std::pair<int64_t, int64_t>{128, 96}, {128, 40}, {64, 128}, {192, 128}, {96, 64}}) {
    Call c(Type::bf16,
           {.seqlen_q = 150, .seqlen_k = 150, .heads = 2, .heads_kv = 2, .head_dim = dim, .value_dim = value_dim});
    c.fill_normal(82);
    expect_like_reference(c, kernel());
    if (IsSkipped()) return;
  }
}

// flashinfer-ai/flashinfer#4051: the merge of two empty results is NaN. Merging into a part is refused by name.
TEST(Merge, flashinfer_4051) {
  const double empty = -kInf;
  for (const bool in_place : {false, true})
    for (const std::vector<double>& lses :
         {std::vector<double>{empty, empty}, {empty, 1.5}, {1.5, empty}, {empty, empty, empty}}) {
      const int64_t parts = static_cast<int64_t>(lses.size());
      Stored outs(Type::f32, {parts, 1, 1, 64}), lse_parts(Type::f32, {parts, 1, 1, 1});
      Stored out(Type::f32, {1, 1, 1, 64}), lse(Type::f32, {1, 1, 1, 1});
      for (int64_t p = 0; p < parts; ++p) {
        lse_parts.set(lses[p], p);
        for (int64_t d = 0; d < 64; ++d) outs.set(lses[p] == empty ? 0 : 0.1 * double(d + 1), p, 0, 0, d);
      }
      tw_merge m;
      TW_INIT(m);
      m.device_type = TW_CPU, m.parts = parts, m.out_part_stride = 64, m.lse_part_stride = 1;
      m.out_parts = outs.view(), m.lse_parts = lse_parts.view();
      m.out_parts.shape[0] = m.lse_parts.shape[0] = 1;
      m.out = in_place ? m.out_parts : out.view(), m.lse = in_place ? m.lse_parts : lse.view();
      if (in_place) {
        EXPECT_EQ(tw_attention_merge(&m, nullptr), TW_INVALID_ARGUMENT);
        EXPECT_NE(std::strstr(tw_last_error(), "out_parts"), nullptr) << tw_last_error();
        continue;
      }
      ASSERT_EQ(tw_attention_merge(&m, nullptr), TW_OK) << tw_last_error();
      int64_t real = -1;
      for (int64_t p = 0; p < parts; ++p) real = lses[p] == empty ? real : p;
      EXPECT_EQ(lse.at(0), real < 0 ? empty : 1.5);
      for (int64_t d = 0; d < 64; ++d) EXPECT_EQ(out.at(0, 0, 0, d), real < 0 ? 0 : outs.at(real, 0, 0, d));
    }
}

}  // namespace
}  // namespace tilewise::reports
