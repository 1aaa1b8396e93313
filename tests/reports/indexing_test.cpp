// Reports of wrong addresses: strides, alignment, offsets past 32 bits, tails, head sizes, causal alignment.
#include <sys/mman.h>

#include <cstring>

#include "reports/call.h"

namespace tilewise::reports {
namespace {

class Indexing : public EveryKernel {};
INSTANTIATE_TEST_SUITE_P(Reports, Indexing, testing::ValuesIn(kernels_here()), test_name);

// Address space without memory: pages come when they are touched.
class Untouched {
 public:
  explicit Untouched(size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Untouched() {
    if (data_ != MAP_FAILED) munmap(data_, bytes_);
  }
  Untouched(const Untouched&) = delete;
  Untouched& operator=(const Untouched&) = delete;
  bool ok() const { return data_ != MAP_FAILED; }
  uint16_t* halves() const { return static_cast<uint16_t*>(data_); }

 private:
  size_t bytes_;
  void* data_;
};

uint16_t half_bits(double x) {
  const Stored t = [&] {
    Stored one(Type::f16, {1, 1, 1, 1});
    one.set(x, 0);
    return one;
  }();
  uint16_t bits;
  std::memcpy(&bits, t.view().data, 2);
  return bits;
}

// pytorch/pytorch#162588: row * stride of a bias is computed in 32 bits.
TEST_P(Indexing, pytorch_162588) {
  const int64_t rows = 65537, keys = 64;
  Call c(Type::f16, {.seqlen_q = rows, .seqlen_k = keys, .head_dim = 8});
  c.fill_normal(20);
  c.fill(c.q, 0);
  const Untouched memory((rows - 1) * rows * 2 + keys * 2);
  ASSERT_TRUE(memory.ok());
  const uint16_t far = half_bits(10);
  for (int64_t i = 0; i < rows; i += 256) memory.halves()[i * rows + i / 256 % keys] = far;
  c.adjust = [&](tw_attention& a, tw_attention_grad&) {
    a.bias = tw_tensor_of(memory.halves(), TW_F16, 1, 1, rows, keys);
    a.bias.stride[2] = rows;
  };
  RUN_OR_SKIP(c.forward(kernel()));
  for (int64_t i = 0; i < rows; i += 256) {
    double sum = 0, value = 0;
    for (int64_t j = 0; j < keys; ++j) {
      const double p = std::exp(j == i / 256 % keys ? 10 : 0);
      sum += p, value += p * c.v.at(0, j, 0, 0);
    }
    ASSERT_NEAR(c.out.at(0, i, 0, 0), value / sum, 4e-3) << "row " << i;
  }
}

// ggml-org/llama.cpp#24912: the batch stride of a mask is taken as 32 bits.
TEST_P(Indexing, llama_cpp_24912) {
  Call c(Type::f16, {.batch = 2, .seqlen_q = 3, .seqlen_k = 70});
  c.fill_normal(21);
  const int64_t stride = int64_t{1} << 32;
  const Untouched memory((stride + 3 * 70) * 2);
  ASSERT_TRUE(memory.ok());
  Stored near(Type::f16, {2, 1, 3, 70});
  Random random(22);
  near.each([&](int64_t b, int64_t h, int64_t i, int64_t j) { near.set(random.normal(), b, h, i, j); });
  std::memcpy(memory.halves(), near.view().data, 3 * 70 * 2);
  std::memcpy(memory.halves() + stride, static_cast<uint16_t*>(near.view().data) + 3 * 70, 3 * 70 * 2);
  Call wide = c;
  c.a.bias = near.view();
  wide.adjust = [&](tw_attention& a, tw_attention_grad&) {
    a.bias = tw_tensor_of(memory.halves(), TW_F16, 2, 1, 3, 70);
    a.bias.stride[0] = stride;
  };
  RUN_OR_SKIP(c.forward(kernel()));
  RUN_OR_SKIP(wide.forward(kernel()));
  EXPECT_TRUE(same_bits(c.out, wide.out));
}

// facebookresearch/xformers#719: an index cast to 16 bits gives NaN past 32,768 keys.
TEST_P(Indexing, xformers_719) {
  const int64_t keys = 33728;
  Call c(Type::f32, {.seqlen_q = 40, .seqlen_k = keys});
  for (Stored* t : {&c.q, &c.k, &c.v}) c.fill(*t, 0);
  RUN_OR_SKIP(c.forward(kernel()));
  for (int64_t i = 0; i < 40; ++i) expect_row(c, 0, i, 0, 0, std::log(double(keys)), 0);
  c.fill_normal(23);
  c.fill(c.q, 0);
  RUN_OR_SKIP(c.forward(kernel()));
  for (int64_t i = 0; i < 40; ++i) expect_mean(c, 0, i, 0, 0, keys);
}

// pytorch/pytorch#112577: transposed K and V with a mask of odd row stride give garbage.
TEST_P(Indexing, pytorch_112577) {
  for (const int64_t rows : {1, 7}) {
    Call c(Type::f32, {.batch = 2, .seqlen_q = rows, .seqlen_k = 9, .heads = 16, .heads_kv = 16, .head_dim = 128});
    c.fill_normal(24);
    Call views = c;
    const Shape longer{2, 14, 16, 128};  // a cache of which 9 rows are used
    for (Stored* t : {&views.k, &views.v}) {
      const Stored from = *t;
      *t = Stored(Type::f32, longer, Layout::heads_outside);
      from.each([&](int64_t b, int64_t j, int64_t h, int64_t d) { t->set(from.at(b, j, h, d), b, j, h, d); });
    }
    Stored mask(Type::boolean, {1, 1, rows, 9}, Layout::gaps);
    mask.each([&](int64_t a, int64_t h, int64_t i, int64_t j) { mask.set(j <= i + 2, a, h, i, j); });
    c.a.mask = views.a.mask = mask.view();
    views.adjust = [](tw_attention& a, tw_attention_grad&) { a.k.shape[1] = a.v.shape[1] = 9; };
    RUN_OR_SKIP(c.forward(kernel()));
    RUN_OR_SKIP(views.forward(kernel()));
    EXPECT_TRUE(same_bits(c.out, views.out));
  }
}

// ROCm/pytorch#3230: V transposed while Q and K are not.
TEST_P(Indexing, rocm_pytorch_3230) {
  Call c(Type::bf16, {.seqlen_q = 62, .seqlen_k = 62, .heads = 16, .heads_kv = 16, .head_dim = 128});
  c.fill_normal(25);
  RUN_OR_SKIP(c.forward(kernel()));
  for (int which = 1; which < 8; ++which) {
    Call views = c;
    Stored Call::*const tensors[] = {&Call::q, &Call::k, &Call::v};
    for (int t = 0; t < 3; ++t) {
      if (!(which >> t & 1)) continue;
      const Stored from = views.*tensors[t];
      Stored& to = views.*tensors[t] = Stored(Type::bf16, from.shape(), Layout::heads_outside);
      from.each([&](int64_t b, int64_t i, int64_t h, int64_t d) { to.set(from.at(b, i, h, d), b, i, h, d); });
    }
    RUN_OR_SKIP(views.forward(kernel()));
    EXPECT_TRUE(same_bits(c.out, views.out)) << "transposed: " << which;
  }
}

// pytorch/pytorch#187506: an innermost stride other than 1 is read as 1. Here it is refused by name; in a bias it
// works.
TEST_P(Indexing, pytorch_187506) {
  for (tw_tensor tw_attention::*field : {&tw_attention::q, &tw_attention::k, &tw_attention::v}) {
    Call c(Type::f32, {.seqlen_q = 8, .seqlen_k = 8, .heads = 2, .heads_kv = 2, .head_dim = 8});
    c.fill_normal(26);
    c.adjust = [field](tw_attention& a, tw_attention_grad&) { (a.*field).stride[3] = 8; };
    const Status status = c.forward(kernel());
    EXPECT_EQ(status.code, TW_INVALID_ARGUMENT);
    EXPECT_NE(std::strstr(status.message.chars, "stride"), nullptr) << status.message.chars;
  }
  for (const int64_t stride : {2, 0}) {
    Call c(Type::f32, {.seqlen_q = 16, .seqlen_k = 16, .heads = 2, .heads_kv = 2, .head_dim = 8});
    c.fill_normal(27);
    Stored wide(Type::f32, {1, 2, 16, 32}), dense(Type::f32, {1, 2, 16, 16});
    Random random(28);
    wide.each([&](int64_t a, int64_t h, int64_t i, int64_t j) { wide.set(random.normal(), a, h, i, j); });
    dense.each(
        [&](int64_t a, int64_t h, int64_t i, int64_t j) { dense.set(wide.at(a, h, i, j * stride), a, h, i, j); });
    Call strided = c;
    c.a.bias = dense.view();
    strided.adjust = [&](tw_attention& a, tw_attention_grad&) {
      a.bias = wide.view();
      a.bias.shape[3] = 16, a.bias.stride[3] = stride;
    };
    RUN_OR_SKIP(c.forward(kernel()));
    RUN_OR_SKIP(strided.forward(kernel()));
    EXPECT_TRUE(same_bits(c.out, strided.out));
  }
}

// flagos-ai/FlagAttention#45: K is addressed with the strides of V.
TEST_P(Indexing, flag_attention_45) {
  for (const bool k_strided : {true, false})
    for (const int splits : {0, 4}) {
      Call c(Type::f16, {.seqlen_q = 128, .seqlen_k = 128, .heads = 2, .heads_kv = 2});
      c.fill_normal(29);
      c.a.num_splits = splits;
      RUN_OR_SKIP(c.forward(kernel()));
      Call strided = c;
      Stored& t = k_strided ? strided.k : strided.v;
      const Stored from = t;
      t = Stored(Type::f16, {1, 256, 2, 64}, Layout::heads_outside);
      from.each([&](int64_t b, int64_t j, int64_t h, int64_t d) { t.set(from.at(b, j, h, d), b, 2 * j, h, d); });
      strided.adjust = [=](tw_attention& a, tw_attention_grad&) {
        tw_tensor& view = k_strided ? a.k : a.v;
        view.shape[1] = 128, view.stride[1] *= 2;
      };
      RUN_OR_SKIP(strided.forward(kernel()));
      EXPECT_TRUE(same_bits(c.out, strided.out));
    }
}

// facebookresearch/xformers#813: a bias of odd row length, and tensors two bytes off alignment.
TEST_P(Indexing, xformers_813) {
  Call c(Type::f16, {.seqlen_q = 5, .seqlen_k = 43, .heads = 16, .heads_kv = 16});
  c.fill_normal(30);
  Random random(31);
  Stored bias(Type::f16, {1, 16, 5, 43});
  bias.each([&](int64_t a, int64_t h, int64_t i, int64_t j) { bias.set(random.normal(), a, h, i, j); });
  Call off = c;
  for (Stored Call::*t : {&Call::q, &Call::k, &Call::v}) {
    const Stored from = c.*t;
    Stored& to = off.*t = Stored(Type::f16, from.shape(), Layout::unaligned);
    from.each([&](int64_t b, int64_t i, int64_t h, int64_t d) { to.set(from.at(b, i, h, d), b, i, h, d); });
  }
  c.a.bias = bias.view();
  Stored off_bias(Type::f16, bias.shape(), Layout::unaligned);
  bias.each([&](int64_t a, int64_t h, int64_t i, int64_t j) { off_bias.set(bias.at(a, h, i, j), a, h, i, j); });
  off.a.bias = off_bias.view();
  expect_like_reference(c, kernel());
  RUN_OR_SKIP(c.forward(kernel()));
  RUN_OR_SKIP(off.forward(kernel()));
  EXPECT_TRUE(same_bits(c.out, off.out));
}

// Dao-AILab/flash-attention#1778: causal with more rows than keys; the alignment is bottom-right.
TEST_P(Indexing, flash_attention_1778) {
  Call c(Type::f16, {.seqlen_q = 128, .seqlen_k = 64});
  c.fill_normal(32);
  c.a.flags = TW_CAUSAL;
  expect_like_reference(c, kernel());
  Call square(Type::f16, {.seqlen_q = 64, .seqlen_k = 64});
  square.k = c.k, square.v = c.v;
  square.q.each([&](int64_t b, int64_t i, int64_t h, int64_t d) { square.q.set(c.q.at(b, i + 64, h, d), b, i, h, d); });
  square.a.flags = TW_CAUSAL;
  RUN_OR_SKIP(square.forward(kernel()));
  for (int64_t i = 0; i < 64; ++i) {
    expect_empty_row(c, 0, i, 0);
    for (int64_t d = 0; d < 64; ++d) {
      EXPECT_EQ(c.dq.at(0, i, 0, d), 0);
      EXPECT_NEAR(c.out.at(0, i + 64, 0, d), square.out.at(0, i, 0, d), 4e-3);
    }
  }
}

// pytorch/pytorch#108108: two conventions of causal masks on rectangles; both are there, and tables say which is which.
TEST_P(Indexing, pytorch_108108) {
  for (const auto& [rows, keys] : {std::pair<int64_t, int64_t>{2, 5}, {5, 2}})
    for (const bool top_left : {true, false}) {
      Call c(Type::f32, {.seqlen_q = rows, .seqlen_k = keys, .head_dim = 8});
      c.fill_normal(33);
      c.fill(c.q, 0);
      c.a.flags = TW_CAUSAL | (top_left ? TW_TOP_LEFT : 0);
      RUN_OR_SKIP(c.forward(kernel()));
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t seen = std::clamp<int64_t>(top_left ? i + 1 : i + 1 + keys - rows, 0, keys);
        if (seen == 0) {
          expect_empty_row(c, 0, i, 0);
        } else {
          expect_mean(c, 0, i, 0, 0, seen);
        }
      }
    }
}

// sgl-project/sglang#22434: a key tile that lies wholly in the future of the first rows writes before the buffer.
TEST_P(Indexing, sglang_22434) {
  for (const int64_t n : {4097, 5000}) {
    if (std::strstr(kernel(), "portable") && n > 4097) continue;
    Call c(Type::bf16, {.seqlen_q = n, .seqlen_k = n});
    c.fill_normal(34);
    c.fill(c.q, 0);
    c.a.flags = TW_CAUSAL;
    RUN_OR_SKIP(c.forward(kernel()));
    for (const int64_t i : {int64_t{0}, int64_t{511}, int64_t{767}, int64_t{4096}, n - 1})
      expect_mean(c, 0, i, 0, 0, i + 1);
    EXPECT_TRUE(all_finite(c.out));
  }
}

// Dao-AILab/flash-attention#2470: no keys at all.
TEST_P(Indexing, flash_attention_2470) {
  for (const uint32_t flags : {0u, uint32_t{TW_CAUSAL}}) {
    Call c(Type::f32, {.batch = 2, .seqlen_q = 16, .seqlen_k = 0, .heads = 4, .heads_kv = 4});
    c.fill_normal(35);
    c.a.flags = flags;
    RUN_OR_SKIP(c.forward(kernel()));
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t h = 0; h < 4; ++h)
        for (int64_t i = 0; i < 16; ++i) expect_empty_row(c, b, i, h);
    RUN_OR_SKIP(c.backward(kernel()));
    EXPECT_EQ(largest(c.dq), 0);
    EXPECT_TRUE(all_finite(c.dq));
  }
}

// triton-lang/triton#621: only the first 64 channels are used.
TEST_P(Indexing, triton_621) {
  for (const int64_t dim : {72, 96, 128, 160, 192, 256}) {
    Call c(Type::f32, {.seqlen_q = 30, .seqlen_k = 50, .head_dim = dim});
    c.fill_normal(36);
    for (Stored* t : {&c.q, &c.k})
      t->each([&](int64_t a, int64_t i, int64_t h, int64_t d) {
        if (d < 64) t->set(0, a, i, h, d);
      });
    c.v.each(
        [&](int64_t a, int64_t j, int64_t h, int64_t d) { c.v.set(c.v.at(a, j, h, d) + double(d) / 256, a, j, h, d); });
    expect_like_reference(c, kernel());
  }
}

// Dao-AILab/flash-attention#1347: head sizes that are no multiple of 8; the default scale uses the size given.
TEST_P(Indexing, flash_attention_1347) {
  for (const int64_t dim : {1, 3, 33, 59, 80, 100}) {
    Call c(Type::f16, {.seqlen_q = 37, .seqlen_k = 53, .heads = 2, .heads_kv = 1, .head_dim = dim});
    c.fill_normal(37);
    expect_like_reference(c, kernel());
    Call scaled = c;
    scaled.a.flags = TW_SOFTMAX_SCALE, scaled.a.softmax_scale = static_cast<float>(1 / std::sqrt(double(dim)));
    RUN_OR_SKIP(c.forward(kernel()));
    RUN_OR_SKIP(scaled.forward(kernel()));
    EXPECT_TRUE(same_bits(c.out, scaled.out));
  }
}

// pytorch/pytorch#169222: few rows; keys past the end are read when the length is no multiple of 32.
TEST_P(Indexing, pytorch_169222) {
  for (const int64_t rows : {1, 3, 8})
    for (const int64_t keys : {1, 31, 33, 38, 39, 70})
      for (const int64_t dim : {64, 96, 128}) {
        Call c(Type::f32, {.seqlen_q = rows, .seqlen_k = keys + 20, .head_dim = dim});
        c.fill_normal(38);
        for (Stored* t : {&c.k, &c.v})
          t->each([&](int64_t a, int64_t j, int64_t h, int64_t d) {
            if (j >= keys) t->set(NAN, a, j, h, d);
          });
        const Stored used = int32s({keys});
        c.a.seqused_k = used.view();
        c.a.flags = TW_BATCH_INVARIANT;  // the products of one library for both
        RUN_OR_SKIP(c.forward(kernel()));
        EXPECT_TRUE(all_finite(c.out));
        Call shorter(Type::f32, {.seqlen_q = rows, .seqlen_k = keys, .head_dim = dim});
        shorter.a.flags = c.a.flags;
        shorter.q = c.q;
        for (Stored Call::*t : {&Call::k, &Call::v})
          (shorter.*t).each([&](int64_t a, int64_t j, int64_t h, int64_t d) {
            (shorter.*t).set((c.*t).at(a, j, h, d), a, j, h, d);
          });
        RUN_OR_SKIP(shorter.forward(kernel()));
        EXPECT_TRUE(same_bits(c.out, shorter.out)) << rows << " rows, " << keys << " keys, head size " << dim;
      }
}

// jax-ml/jax#28974: masks of extent 1 along some axes are refused.
TEST_P(Indexing, jax_28974) {
  const Shape whole{4, 4, 32, 32};
  Random random(39);
  for (const Shape& shape : {Shape{4, 1, 1, 32}, Shape{1, 1, 32, 32}, Shape{1, 4, 1, 32}, Shape{4, 4, 32, 1}}) {
    Call c(Type::bf16, {.batch = 4, .seqlen_q = 32, .seqlen_k = 32, .heads = 4, .heads_kv = 4, .head_dim = 16});
    c.fill_normal(40);
    Stored mask(Type::boolean, shape), expanded(Type::boolean, whole);
    mask.each([&](int64_t b, int64_t h, int64_t i, int64_t j) { mask.set(random.chance(0.7), b, h, i, j); });
    expanded.each([&](int64_t b, int64_t h, int64_t i, int64_t j) {
      expanded.set(mask.at(shape[0] == 1 ? 0 : b, shape[1] == 1 ? 0 : h, shape[2] == 1 ? 0 : i, shape[3] == 1 ? 0 : j),
                   b, h, i, j);
    });
    Call full = c;
    c.a.mask = mask.view(), full.a.mask = expanded.view();
    RUN_OR_SKIP(c.forward(kernel()));
    RUN_OR_SKIP(full.forward(kernel()));
    EXPECT_TRUE(same_bits(c.out, full.out));
  }
}

}  // namespace
}  // namespace tilewise::reports
