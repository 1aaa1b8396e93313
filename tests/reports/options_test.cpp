// Reports about windows, dropout, types and leaks.
#include <malloc.h>

#include <cstring>

#include "reports/call.h"

namespace tilewise::reports {
namespace {

class Options : public EveryKernel {};
INSTANTIATE_TEST_SUITE_P(Reports, Options, testing::ValuesIn(kernels_here()), test_name);

// q = 0, so each row is the mean of the v it sees. window[2]: left, right; -1 = unbounded.
Call with_window(Type type, Sizes sizes, int64_t left, int64_t right, bool causal) {
  Call c(type, sizes);
  c.fill_normal(90);
  c.fill(c.q, 0);
  if (left >= 0) c.a.flags |= TW_WINDOW_LEFT, c.a.window_left = left;
  if (right >= 0) c.a.flags |= TW_WINDOW_RIGHT, c.a.window_right = right;
  if (causal) c.a.flags |= TW_CAUSAL;
  return c;
}

// huggingface/transformers#39408, NVIDIA/TransformerEngine#1197: a window of W keys is left = W - 1; the key i - left
// is inside.
TEST_P(Options, transformers_39408_transformer_engine_1197) {
  for (const bool causal : {true, false}) {
    Call c = with_window(Type::f16, {.seqlen_q = 16, .seqlen_k = 16, .head_dim = 64}, 3, 0, causal);
    c.v.each([&](int64_t a, int64_t j, int64_t h, int64_t d) { c.v.set(d == j, a, j, h, d); });
    RUN_OR_SKIP(c.forward(kernel()));
    for (int64_t i = 0; i < 16; ++i)
      for (int64_t j = 0; j < 16; ++j) EXPECT_EQ(c.out.at(0, i, 0, j) > 0, j <= i && j >= i - 3) << i << " sees " << j;
  }
}

// Dao-AILab/flash-attention#2490: a window that selects nothing is taken for none. A negative side is refused by name.
TEST_P(Options, flash_attention_2490) {
  for (const auto& [left, right] : {std::pair<int64_t, int64_t>{7, -8}, {3, -4}, {-2, 0}}) {
    Call c(Type::f32, {.seqlen_q = 32, .seqlen_k = 32});
    c.fill_normal(91);
    c.a.flags = TW_WINDOW_LEFT | TW_WINDOW_RIGHT, c.a.window_left = left, c.a.window_right = right;
    const Status status = c.forward(kernel());
    EXPECT_EQ(status.code, TW_INVALID_ARGUMENT);
    EXPECT_NE(std::strstr(status.message.chars, left < 0 ? "window_left" : "window_right"), nullptr)
        << status.message.chars;
    EXPECT_TRUE(std::isnan(c.out.at(0, 0, 0, 0)));
  }
}

// Dao-AILab/flash-attention#2199: a window with more rows than keys follows the bottom-right diagonal.
TEST_P(Options, flash_attention_2199) {
  Call c = with_window(Type::f32, {.seqlen_q = 129, .seqlen_k = 32}, 32, 64, false);
  RUN_OR_SKIP(c.forward(kernel()));
  for (int64_t i = 0; i < 129; ++i) {
    const int64_t p = i + 32 - 129, lo = std::max<int64_t>(p - 32, 0), hi = std::min<int64_t>(p + 65, 32);
    if (lo < hi) {
      expect_mean(c, 0, i, 0, lo, hi);
    } else {
      expect_empty_row(c, 0, i, 0);
    }
  }
  expect_empty_row(c, 0, 32, 0);
  expect_mean(c, 0, 33, 0, 0, 1);
}

// jax-ml/jax#39576: a window without causal lets rows see all later keys.
TEST_P(Options, jax_39576) {
  for (const auto& [left, right] : {std::pair<int64_t, int64_t>{4, 0}, {4, 2}, {0, 0}, {0, 4}}) {
    Call c = with_window(Type::f32, {.seqlen_q = 16, .seqlen_k = 16}, left, right, false);
    RUN_OR_SKIP(c.forward(kernel()));
    for (int64_t i = 0; i < 16; ++i)
      expect_mean(c, 0, i, 0, std::max<int64_t>(i - left, 0), std::min<int64_t>(i + right + 1, 16));
  }
}

// tlc-pack/libflash_attn#11: a window wider than the context drops causality.
TEST_P(Options, libflash_attn_11) {
  for (const int64_t rows : {16, 1}) {
    Call c = with_window(Type::f32, {.seqlen_q = rows, .seqlen_k = 16}, 4096, 0, true);
    RUN_OR_SKIP(c.forward(kernel()));
    for (int64_t i = 0; i < rows; ++i) expect_mean(c, 0, i, 0, 0, i + 17 - rows);
  }
}

// MinghuasLab/flash-attention-npu#168: a right-only window over 20,000 keys, head size 59.
TEST_P(Options, flash_attention_npu_168) {
  Call c = with_window(Type::f16, {.seqlen_q = 16, .seqlen_k = 20000, .head_dim = 59}, 0, 256, false);
  RUN_OR_SKIP(c.forward(kernel()));
  for (int64_t i = 0; i < 16; ++i) expect_mean(c, 0, i, 0, 19984 + i, 20000);
  for (int64_t d = 0; d < 59; ++d) EXPECT_EQ(c.out.at(0, 15, 0, d), c.v.at(0, 19999, 0, d));
}

// Dao-AILab/flash-attention#2088: seed and offset have no effect, so every call drops the same pairs.
TEST_P(Options, flash_attention_2088) {
  const auto dropped = [&](uint64_t seed, uint64_t offset) {
    Call c(Type::f32, {.seqlen_q = 64, .seqlen_k = 64});
    c.fill_normal(92);
    c.fill(c.q, 0);
    c.v.each([&](int64_t a, int64_t j, int64_t h, int64_t d) { c.v.set(d == j, a, j, h, d); });
    c.a.dropout_p = 0.5, c.a.dropout_seed = seed, c.a.dropout_offset = offset;
    EXPECT_TRUE(c.forward("reference").ok());
    const Stored want = c.out;
    const Status status = c.forward(kernel());
    if (status.code != TW_UNSUPPORTED) {
      EXPECT_TRUE(status.ok()) << status.message.chars;
      EXPECT_LE(difference(c.out, want), 1e-6);
    }
    std::vector<bool> bits;
    c.out.each([&](int64_t a, int64_t i, int64_t h, int64_t d) { bits.push_back(c.out.at(a, i, h, d) == 0); });
    return bits;
  };
  const std::vector<bool> first = dropped(1, 0);
  EXPECT_EQ(first, dropped(1, 0));
  EXPECT_NE(first, dropped(1, 1));
  EXPECT_NE(first, dropped(2, 0));
  const double rate = static_cast<double>(std::count(first.begin(), first.end(), true)) / 4096;
  EXPECT_NEAR(rate, 0.5, 4 * 0.5 / 64);
}

// pytorch/pytorch#149726: over many seeds the mean of the output is the output without dropout.
TEST_P(Options, pytorch_149726) {
  Call c(Type::f32, {.seqlen_q = 16, .seqlen_k = 16, .head_dim = 16});
  c.fill_normal(93);
  c.v.each([&](int64_t a, int64_t j, int64_t h, int64_t d) { c.v.set(d == j, a, j, h, d); });
  RUN_OR_SKIP(c.forward(kernel()));
  const Stored plain = c.out;
  std::vector<double> sum(256), probs(256);
  c.a.dropout_p = 0.3F;
  const int seeds = 2000;
  for (int seed = 0; seed < seeds; ++seed) {
    c.a.dropout_seed = static_cast<uint64_t>(seed);
    RUN_OR_SKIP(c.forward(kernel()));
    for (int64_t i = 0; i < 16; ++i)
      for (int64_t j = 0; j < 16; ++j) {
        const double x = c.out.at(0, i, 0, j), p = plain.at(0, i, 0, j);
        sum[i * 16 + j] += x;
        ASSERT_TRUE(x == 0 || std::abs(x - p / 0.7) < 1e-5 + 1e-4 * p)
            << "kept probabilities are scaled by 1 / (1 - p)";
      }
  }
  for (int64_t i = 0; i < 16; ++i)
    for (int64_t j = 0; j < 16; ++j) {
      const double p = plain.at(0, i, 0, j);
      EXPECT_NEAR(sum[i * 16 + j] / seeds, p, 5 * p * std::sqrt(0.3 / 0.7 / seeds));
    }
}

// pytorch/pytorch#191612: the bytes of an fp32 mask are read in the type of q.
TEST_P(Options, pytorch_191612) {
  Call c(Type::f16, {.seqlen_q = 32, .seqlen_k = 32, .heads = 4, .heads_kv = 4, .head_dim = 16});
  c.fill_normal(94);
  c.a.flags = TW_CAUSAL;
  RUN_OR_SKIP(c.forward(kernel()));
  for (const Type type : {Type::f32, Type::f16, Type::bf16}) {
    Stored bias(type, {1, 1, 32, 32});
    bias.each([&](int64_t a, int64_t h, int64_t i, int64_t j) { bias.set(j > i ? -kInf : 0, a, h, i, j); });
    Call masked = c;
    masked.a.flags = 0, masked.a.bias = bias.view();
    RUN_OR_SKIP(masked.forward(kernel()));
    EXPECT_LE(difference(c.out, masked.out), 2e-3);
  }
  for (const int32_t type : {int32_t{TW_I8}, int32_t{TW_I64}, int32_t{TW_BOOL}, int32_t{99}}) {
    Stored bias(Type::f32, {1, 1, 32, 32});
    c.a.bias = bias.view(), c.a.bias.dtype = type;
    const Status status = c.forward(kernel());
    EXPECT_TRUE(status.code == TW_INVALID_ARGUMENT || status.code == TW_UNSUPPORTED);
    EXPECT_NE(std::strstr(status.message.chars, "bias"), nullptr) << status.message.chars;
  }
}

// princeton-nlp/AutoCompressors#15: q and k promoted to fp32 while v stays; the error does not say which.
TEST_P(Options, auto_compressors_15) {
  for (Stored Call::*odd : {&Call::q, &Call::k, &Call::v}) {
    Call c(Type::f32, {.seqlen_q = 8, .seqlen_k = 8});
    c.fill_normal(95);
    c.*odd = Stored(Type::bf16, (c.*odd).shape());
    const Status status = c.forward(kernel());
    EXPECT_EQ(status.code, TW_INVALID_ARGUMENT);
    EXPECT_TRUE(std::strstr(status.message.chars, "fp32") && std::strstr(status.message.chars, "bf16"))
        << status.message.chars;
  }
}

// Dao-AILab/flash-attention#846: ALiBi slopes in half precision are read as fp32.
TEST_P(Options, flash_attention_846) {
  for (const Type type : {Type::bf16, Type::f16}) {
    Call c(Type::f32, {.seqlen_q = 8, .seqlen_k = 8});
    c.fill_normal(96);
    Stored slopes(type, {1, 1, 1, 1});
    c.a.alibi_slopes = slopes.view();
    const Status status = c.forward(kernel());
    EXPECT_EQ(status.code, TW_INVALID_ARGUMENT);
    EXPECT_NE(std::strstr(status.message.chars, "alibi_slopes"), nullptr) << status.message.chars;
  }
}

// vllm-project/vllm#50150: host memory grows with every call.
TEST(Leaks, vllm_50150) {
  Call c(Type::f32, {.seqlen_q = 1, .seqlen_k = 16, .head_dim = 16});
  c.fill_normal(97);
  c.a.device_type = TW_CPU;
  c.a.q = c.q.view(), c.a.k = c.k.view(), c.a.v = c.v.view(), c.a.out = c.out.view();
  const auto in_use = [&](int calls) {
    for (int i = 0; i < calls; ++i) EXPECT_EQ(tw_attention_forward(&c.a, nullptr), TW_OK);
    return mallinfo2().uordblks;
  };
  const size_t before = in_use(2000), after = in_use(20000);
  EXPECT_LT(after, before + (size_t{1} << 20));
}

}  // namespace
}  // namespace tilewise::reports
