// Reports of wrong numbers: masked rows, infinities, huge and tiny scores, narrow accumulators.
#include "reports/call.h"

namespace tilewise::reports {
namespace {

class Numerics : public EveryKernel {};
INSTANTIATE_TEST_SUITE_P(Reports, Numerics, testing::ValuesIn(kernels_here()), test_name);

// pytorch/pytorch#103963: rows that a boolean mask leaves without a key are NaN.
TEST_P(Numerics, pytorch_103963) {
  Call c(Type::f32, {.seqlen_q = 8, .seqlen_k = 8, .head_dim = 8});
  c.fill_normal(1);
  c.fill(c.dout, 1);
  Stored mask(Type::boolean, {1, 1, 8, 8});
  mask.each([&](int64_t a, int64_t b, int64_t i, int64_t j) { mask.set(i < 4 && j < 4, a, b, i, j); });
  c.a.mask = mask.view();
  expect_like_reference(c, kernel());
  if (IsSkipped()) return;
  for (int64_t i = 4; i < 8; ++i) {
    expect_empty_row(c, 0, i, 0);
    for (int64_t d = 0; d < 8; ++d) {
      EXPECT_EQ(c.dq.at(0, i, 0, d), 0);
      EXPECT_EQ(c.dk.at(0, i, 0, d), 0);
      EXPECT_EQ(c.dv.at(0, i, 0, d), 0);
    }
  }
}

// pytorch/pytorch#109517: a bias of the lowest finite number on every key of a row gives NaN.
TEST_P(Numerics, pytorch_109517) {
  for (const bool one_row : {true, false}) {
    Call c(Type::f32, {.seqlen_q = 441, .seqlen_k = 441});
    c.fill_normal(2);
    Stored bias(Type::f32, {1, 1, 441, 441});
    bias.each([&](int64_t a, int64_t b, int64_t i, int64_t j) {
      bias.set((one_row ? i == 392 : j < 128) ? -3.4028235e38 : 0, a, b, i, j);
    });
    c.a.bias = bias.view();
    expect_like_reference(c, kernel(), !one_row);
    if (IsSkipped()) return;
    if (one_row) {
      for (int64_t d = 0; d < 64; ++d) {
        double sum = 0;
        for (int64_t j = 0; j < 441; ++j) sum += c.v.at(0, j, 0, d);
        ASSERT_NEAR(c.out.at(0, 392, 0, d), sum / 441, 1e-5);
      }
      EXPECT_TRUE(std::isfinite(c.lse.at(0, 0, 392)));
    }
  }
}

// pytorch/pytorch#127055: tiles that a band mask kills before the row's first live key leave NaN in the maximum.
TEST_P(Numerics, pytorch_127055) {
  for (const int64_t n : {640, 600}) {
    Call c(Type::f32, {.seqlen_q = n, .seqlen_k = n, .head_dim = 4});
    for (Stored* t : {&c.q, &c.k, &c.v}) c.fill(*t, 1);
    Stored bias(Type::f32, {1, 1, n, n});
    bias.each(
        [&](int64_t a, int64_t b, int64_t i, int64_t j) { bias.set(j > i || j <= i - 10 ? -kInf : 0, a, b, i, j); });
    c.a.bias = bias.view();
    RUN_OR_SKIP(c.forward(kernel()));
    for (int64_t i = 0; i < n; ++i) expect_row(c, 0, i, 0, 1, 2 + std::log(std::min<double>(i + 1, 10)), 1e-6);
  }
}

// pytorch/pytorch#101967: NaN in a key that lengths or causality hide reaches the output.
TEST_P(Numerics, pytorch_101967) {
  for (const double hidden : {1e10, double{NAN}, kInf})
    for (const bool in_key : {true, false})
      for (const bool by_length : {true, false}) {
        Call c(Type::f32, {.seqlen_q = 2, .seqlen_k = 2, .head_dim = 4});
        for (Stored* t : {&c.q, &c.k, &c.v})
          t->each([&](int64_t a, int64_t i, int64_t h, int64_t d) { t->set(double(i * 4 + d), a, i, h, d); });
        (in_key ? c.k : c.v).set(hidden, 0, 1, 0, 0);
        const Stored used = int32s({1}), end = int32s({1, 1});
        if (by_length) {
          c.a.seqused_k = used.view();
        } else {
          c.a.key_end = tw_tensor_of(end.view().data, TW_I32, 1, 1, 2, 1);
        }
        RUN_OR_SKIP(c.forward(kernel()));
        for (int64_t i = 0; i < 2; ++i)
          for (int64_t d = 0; d < 4; ++d) EXPECT_EQ(c.out.at(0, i, 0, d), c.v.at(0, 0, 0, d));
      }
}

// pytorch/pytorch#141128: a guard for empty rows turns NaN inputs into zeros.
TEST_P(Numerics, pytorch_141128) {
  for (const bool whole : {true, false}) {
    Call c(Type::f32, {.batch = 2, .seqlen_q = 16, .seqlen_k = 16, .heads = 4, .heads_kv = 4, .head_dim = 8});
    c.fill_normal(3);
    c.q.each([&](int64_t b, int64_t i, int64_t h, int64_t d) {
      if (whole || i == 5) c.q.set(NAN, b, i, h, d);
    });
    RUN_OR_SKIP(c.forward(kernel()));
    c.out.each([&](int64_t b, int64_t i, int64_t h, int64_t d) {
      EXPECT_EQ(std::isnan(c.out.at(b, i, h, d)), whole || i == 5) << "row " << i;
    });
  }
}

// ggml-org/llama.cpp#6438: a first tile that is masked by -inf gives NaN.
TEST_P(Numerics, llama_cpp_6438) {
  for (const int64_t keys : {512, 300}) {
    Call c(Type::f16, {.seqlen_q = 1, .seqlen_k = keys, .head_dim = 128});
    c.fill_normal(4);
    const int64_t first = keys == 512 ? 256 : 299;
    Stored bias(Type::f16, {1, 1, 1, keys});
    for (int64_t j = 0; j < keys; ++j) bias.set(j < first ? -kInf : 0, 0, 0, 0, j);
    c.a.bias = bias.view();
    expect_like_reference(c, kernel());
    if (IsSkipped()) return;
    if (first == 299) expect_mean(c, 0, 0, 0, 299, 300, c.lse.at(0, 0, 0));
  }
}

// Dao-AILab/flash-attention#2082: the maximum of a row whose first tile is masked becomes 0, so very negative scores
// vanish.
TEST_P(Numerics, flash_attention_2082) {
  Call c(Type::bf16, {.seqlen_q = 88, .seqlen_k = 448, .heads = 14, .heads_kv = 2, .head_dim = 128});
  c.fill_normal(5);
  c.fill(c.q, -4.25), c.fill(c.k, 4.1875);
  c.a.flags = TW_CAUSAL;
  RUN_OR_SKIP(c.forward(kernel()));
  const double score = -4.25 * 4.1875 * 128 / std::sqrt(128.0);
  for (int64_t h = 0; h < 14; ++h)
    for (int64_t i = 0; i < 88; ++i) expect_mean(c, 0, i, h, 0, i + 361, score);
  Call zero = c;
  zero.fill(zero.k, 0);
  ASSERT_TRUE(zero.forward(kernel()).ok());
  EXPECT_LE(difference(c.out, zero.out), tolerance(Type::bf16));
}

// flashinfer-ai/flashinfer#4267: -5e4 stands for minus infinity, and rows of lower scores return zeros.
TEST_P(Numerics, flashinfer_4267) {
  Call c(Type::bf16, {.seqlen_q = 4, .seqlen_k = 64, .head_dim = 128});
  c.fill_normal(6);
  c.fill(c.q, -44), c.fill(c.k, 44);
  RUN_OR_SKIP(c.forward(kernel()));
  for (int64_t i = 0; i < 4; ++i) {
    expect_mean(c, 0, i, 0, 0, 64, -44.0 * 44 * 128 / std::sqrt(128.0));
    EXPECT_NEAR(c.lse.at(0, 0, i), -21899.18, c.lse_tolerance(-21899.18));
  }
}

// pytorch/pytorch#196678: zero-filled tails score 0 in the backward, and exp(0 - lse) overflows.
TEST_P(Numerics, pytorch_196678) {
  for (const Type type : {Type::bf16, Type::f16})
    for (const int64_t n : {64, 192, 704, 1000})
      for (const bool masked : {true, false}) {
        Call c(type, {.seqlen_q = n, .seqlen_k = n});
        c.fill_normal(7, 0.01);
        c.q.each([&](int64_t a, int64_t i, int64_t h, int64_t d) { c.q.set(-3.5 + c.q.at(a, i, h, d), a, i, h, d); });
        c.k.each([&](int64_t a, int64_t i, int64_t h, int64_t d) { c.k.set(3.5625 + c.k.at(a, i, h, d), a, i, h, d); });
        Stored mask(Type::boolean, {1, 1, 1, n});
        for (int64_t j = 0; j < n; ++j) mask.set(1, 0, 0, 0, j);
        if (masked) c.a.mask = mask.view();
        expect_like_reference(c, kernel());
        if (IsSkipped()) return;
        EXPECT_TRUE(all_finite(c.dq) && all_finite(c.dk) && all_finite(c.dv));
      }
}

// Dao-AILab/flash-attention#334: dq of one query and one key is NaN.
TEST_P(Numerics, flash_attention_334) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Call c(Type::f16, {.seqlen_q = 1, .seqlen_k = 1, .head_dim = 16});
    c.fill_normal(seed, 3);
    c.fill(c.dout, 1);
    RUN_OR_SKIP(c.forward(kernel()));
    RUN_OR_SKIP(c.backward(kernel()));
    EXPECT_EQ(difference(c.out, c.v), 0);
    EXPECT_LE(difference(c.dv, c.dout), 1e-3);
    EXPECT_LE(std::max(largest(c.dq), largest(c.dk)), 2e-3);
  }
}

// ggml-org/llama.cpp#13991: factors that rescale the output fall below what fp16 holds.
TEST_P(Numerics, llama_cpp_13991) {
  Call c(Type::f16, {.seqlen_q = 1, .seqlen_k = 512});
  c.fill(c.q, 1);
  c.k.each([&](int64_t a, int64_t j, int64_t h, int64_t d) {
    const int64_t step = j / 64;
    c.k.set(1.5 * static_cast<double>(step), a, j, h, d);
  });
  c.v.each([&](int64_t a, int64_t j, int64_t h, int64_t d) { c.v.set(j / 64 % 2 == 0 ? 100 : -100, a, j, h, d); });
  RUN_OR_SKIP(c.forward(kernel()));
  EXPECT_NEAR(c.out.at(0, 0, 0, 0), -100, 0.1);
}

// ikawrakow/ik_llama.cpp#1196: the sum of 65,536 values overflows fp16.
TEST_P(Numerics, ik_llama_cpp_1196) {
  for (const bool many : {true, false}) {
    const int64_t keys = many ? 65536 : 4096;
    Call c(Type::f16, {.seqlen_q = 1, .seqlen_k = keys});
    c.fill(c.q, 1), c.fill(c.k, 0), c.fill(c.v, many ? 1 : 200);
    RUN_OR_SKIP(c.forward(kernel()));
    expect_row(c, 0, 0, 0, many ? 1 : 200, std::log(double(keys)), many ? 1e-3 : 0.13);
  }
}

// ggml-org/llama.cpp#7805: Q K^T overflows fp16 before it is scaled.
TEST_P(Numerics, llama_cpp_7805) {
  Call c(Type::f16, {.seqlen_q = 64, .seqlen_k = 64, .head_dim = 128});
  c.fill_normal(8);
  c.fill(c.q, 30), c.fill(c.k, 30);
  RUN_OR_SKIP(c.forward(kernel()));
  for (int64_t i = 0; i < 64; ++i) expect_mean(c, 0, i, 0, 0, 64, 900 * 128 / std::sqrt(128.0));
}

// ggml-org/llama.cpp#29034: the score cap makes finite scores of the -inf that fills a tile's tail.
TEST_P(Numerics, llama_cpp_29034) {
  for (const int64_t keys : {64, 65, 127, 129}) {
    Call c(Type::f32, {.seqlen_q = 1, .seqlen_k = keys});
    c.fill_normal(9);
    c.fill(c.v, 1);
    c.a.softcap = 30;
    expect_like_reference(c, kernel());
    if (IsSkipped()) return;
    for (int64_t d = 0; d < 64; ++d) EXPECT_NEAR(c.out.at(0, 0, 0, d), 1, 1e-6);
  }
}

// Dao-AILab/flash-attention#907: ALiBi of cross attention differs between packed and dense calls.
TEST_P(Numerics, flash_attention_907) {
  Call dense(Type::f16, {.seqlen_q = 1, .seqlen_k = 17, .heads = 8, .heads_kv = 8});
  dense.fill_normal(10);
  std::vector<double> slope;
  for (int h = 1; h <= 8; ++h) slope.push_back(std::ldexp(1, -h));
  const Stored slopes = floats(slope), rows = int32s({0, 1}), keys = int32s({0, 17});
  dense.a.alibi_slopes = tw_tensor_of(slopes.view().data, TW_F32, 1, 8, 1, 1);
  Stored bias(Type::f32, {1, 8, 1, 17});
  bias.each([&](int64_t a, int64_t h, int64_t i, int64_t j) {
    bias.set(-slope[h] * std::abs(double(i + 17 - 1 - j)), a, h, i, j);
  });
  Call packed = dense, by_hand = dense;
  packed.a.cu_seqlens_q = rows.view(), packed.a.cu_seqlens_k = keys.view();
  by_hand.a.alibi_slopes = {}, by_hand.a.bias = bias.view();
  RUN_OR_SKIP(dense.forward(kernel()));
  RUN_OR_SKIP(packed.forward(kernel()));
  RUN_OR_SKIP(by_hand.forward(kernel()));
  EXPECT_EQ(difference(dense.out, packed.out), 0);
  EXPECT_LE(difference(dense.out, by_hand.out), tolerance(Type::f16));
  EXPECT_LE(difference(dense.lse, by_hand.lse), 2 * dense.lse_tolerance(largest(dense.lse)));
}

}  // namespace
}  // namespace tilewise::reports
