// Reports about packed sequences, lengths and caches.

#include "reports/call.h"

namespace tilewise::reports {
namespace {

class Varlen : public EveryKernel {};
INSTANTIATE_TEST_SUITE_P(Reports, Varlen, testing::ValuesIn(kernels_here()), test_name);

// A packed call; offsets run from 0.
struct Packed : Call {
  Stored cu_q, cu_k;
  Packed(Type type, const std::vector<int64_t>& offsets_q, const std::vector<int64_t>& offsets_k, int64_t heads,
         int64_t heads_kv, int64_t dim)
      : Call(type, {.seqlen_q = offsets_q.back(),
                    .seqlen_k = offsets_k.back(),
                    .heads = heads,
                    .heads_kv = heads_kv,
                    .head_dim = dim}),
        cu_q(int32s(offsets_q)),
        cu_k(int32s(offsets_k)) {
    adjust = [this](tw_attention& a, tw_attention_grad&) {
      a.cu_seqlens_q = cu_q.view(), a.cu_seqlens_k = cu_k.view();
    };
  }
  Packed(const Packed&) = delete;
};

// One sequence of a packed call as a call of its own.
Call alone(const Call& c, int64_t first_q, int64_t rows, int64_t first_k, int64_t keys) {
  Sizes sizes = c.sizes;
  sizes.seqlen_q = rows, sizes.seqlen_k = keys;
  Call one(c.type, sizes);
  one.a.flags = c.a.flags, one.a.softmax_scale = c.a.softmax_scale;
  for (Stored Call::*t : {&Call::q, &Call::k, &Call::v, &Call::dout}) {
    const int64_t first = t == &Call::q || t == &Call::dout ? first_q : first_k;
    (one.*t).each(
        [&](int64_t a, int64_t i, int64_t h, int64_t d) { (one.*t).set((c.*t).at(a, first + i, h, d), a, i, h, d); });
  }
  return one;
}

void expect_rows_equal(const Call& c, int64_t first, const Call& one) {
  one.out.each([&](int64_t a, int64_t i, int64_t h, int64_t d) {
    ASSERT_EQ(c.out.at(a, first + i, h, d), one.out.at(a, i, h, d)) << "row " << first + i;
  });
}

// Dao-AILab/flash-attention#1537: max_seqlen_q of 1 is taken for one row in every sequence.
TEST_P(Varlen, flash_attention_1537) {
  Packed c(Type::bf16, {0, 1, 1, 2}, {0, 3, 3, 8}, 9, 3, 64);
  c.fill_normal(50);
  c.a.flags = TW_CAUSAL | TW_SOFTMAX_SCALE, c.a.softmax_scale = 1, c.a.max_seqlen_q = 1;
  RUN_OR_SKIP(c.forward(kernel()));
  for (const auto& [row, first_k, keys] : {std::array<int64_t, 3>{0, 0, 3}, {1, 3, 5}}) {
    Call one = alone(c, row, 1, first_k, keys);
    RUN_OR_SKIP(one.forward(kernel()));
    expect_rows_equal(c, row, one);
  }
}

// Dao-AILab/flash-attention#443: many more rows than keys under a causal mask give NaN in dq.
TEST_P(Varlen, flash_attention_443) {
  Packed c(Type::f16, {0, 76, 110, 256}, {0, 1, 2, 3}, 1, 1, 32);
  c.fill_normal(51, 3);
  c.fill(c.dout, 1);
  c.a.flags = TW_CAUSAL;
  RUN_OR_SKIP(c.forward(kernel()));
  RUN_OR_SKIP(c.backward(kernel()));
  for (int64_t i = 0; i < 256; ++i) {
    const int64_t key = i == 75 ? 0 : i == 109 ? 1 : i == 255 ? 2 : -1;
    for (int64_t d = 0; d < 32; ++d) {
      EXPECT_EQ(c.out.at(0, i, 0, d), key < 0 ? 0 : c.v.at(0, key, 0, d)) << "row " << i;
      EXPECT_NEAR(c.dq.at(0, i, 0, d), 0, 2e-2);
    }
  }
  for (int64_t j = 0; j < 3; ++j)
    for (int64_t d = 0; d < 32; ++d) EXPECT_NEAR(c.dv.at(0, j, 0, d), 1, 1e-3);
}

// Dao-AILab/flash-attention#2562: sequences without rows, head size 256, backward.
TEST_P(Varlen, flash_attention_2562) {
  Packed c(Type::bf16, {0, 0, 5, 9, 9}, {0, 7, 12, 14, 20}, 4, 1, 256);
  c.fill_normal(52);
  expect_like_reference(c, kernel());
  for (int64_t j = 0; j < 20; ++j)
    if (j < 7 || j >= 14)
      for (int64_t d = 0; d < 256; ++d) {
        EXPECT_EQ(c.dk.at(0, j, 0, d), 0);
        EXPECT_EQ(c.dv.at(0, j, 0, d), 0);
      }
}

// pytorch/pytorch#176793: tokens past the last offset keep what the memory held.
TEST_P(Varlen, pytorch_176793) {
  Packed c(Type::bf16, {0, 144, 432, 944, 946}, {0, 144, 432, 944, 946}, 16, 16, 64);
  c.fill_normal(53);
  c.cu_q = int32s({0, 144, 432, 944}), c.cu_k = int32s({0, 144, 432, 944});
  RUN_OR_SKIP(c.forward(kernel()));
  RUN_OR_SKIP(c.backward(kernel()));
  for (int64_t i = 944; i < 946; ++i)
    for (int64_t h = 0; h < 16; ++h) {
      expect_empty_row(c, 0, i, h);
      for (int64_t d = 0; d < 64; ++d)
        EXPECT_TRUE(c.dq.at(0, i, h, d) == 0 && c.dk.at(0, i, h, d) == 0 && c.dv.at(0, i, h, d) == 0);
    }
  EXPECT_TRUE(all_finite(c.dq) && all_finite(c.dk) && all_finite(c.dv));
}

// Dao-AILab/flash-attention#1773: a maximum below a length goes unnoticed; a larger one changes nothing.
TEST_P(Varlen, flash_attention_1773) {
  for (const int64_t most : {0, 1, 128, 200, 1000}) {
    Packed c(Type::f32, {0, 5, 205}, {0, 5, 205}, 1, 1, 64);
    c.fill_normal(54);
    c.a.max_seqlen_q = c.a.max_seqlen_k = most;
    const Status status = c.forward(kernel());
    if (status.code == TW_UNSUPPORTED) GTEST_SKIP();
    SCOPED_TRACE(most);
    if (most == 0 || most >= 200) {
      EXPECT_TRUE(status.ok()) << status.message.chars;
    } else {
      expect_bad_number(status, "max_seqlen");
    }
  }
}

// Dao-AILab/flash-attention#742: offsets of another form are refused with a message that helps.
TEST_P(Varlen, flash_attention_742) {
  const auto with = [&](const std::function<void(tw_attention&)>& change) {
    Packed c(Type::f32, {0, 5, 20}, {0, 5, 20}, 1, 1, 8);
    c.fill_normal(55);
    const auto before = c.adjust;
    c.adjust = [&](tw_attention& a, tw_attention_grad& g) { before(a, g), change(a); };
    return c.forward(kernel());
  };
  if (with([](tw_attention&) {}).code == TW_UNSUPPORTED) GTEST_SKIP();
  const auto refused = [&](const char* what, const std::function<void(tw_attention&)>& change) {
    SCOPED_TRACE(what);
    expect_bad_number(with(change), "cu_seqlens_k");
  };
  refused("int64", [](tw_attention& a) { a.cu_seqlens_k.dtype = TW_I64; });
  const Stored falling = int32s({0, 25, 20}), late = int32s({1, 5, 20}), far = int32s({0, 5, 21});
  refused("descending", [&](tw_attention& a) { a.cu_seqlens_k = falling.view(); });
  refused("not from 0", [&](tw_attention& a) { a.cu_seqlens_k = late.view(); });
  refused("past the end", [&](tw_attention& a) { a.cu_seqlens_k = far.view(); });
  const Stored spread = int32s({0, -7, 5, -7, 20});
  const Status strided = with([&](tw_attention& a) {
    a.cu_seqlens_k = spread.view();
    a.cu_seqlens_k.shape[0] = 3, a.cu_seqlens_k.stride[0] = 2;
  });
  EXPECT_TRUE(strided.ok()) << "a stride is no fault: " << strided.message.chars;
}

// Dao-AILab/flash-attention#2333: surplus tiles read past the last offset. The arrays end where their memory ends.
TEST_P(Varlen, flash_attention_2333) {
  for (const std::vector<int64_t>& offsets :
       {std::vector<int64_t>{0, 1, 1025}, {0, 1024, 1025}, {0, 1, 2, 3, 4, 5, 6, 7, 307}}) {
    Packed c(Type::f32, offsets, offsets, 1, 1, 16);
    c.fill_normal(56);
    expect_like_reference(c, kernel());
  }
}

// NVIDIA/cudnn-frontend#943: rows of a sequence without keys are NaN.
TEST_P(Varlen, cudnn_frontend_943) {
  Packed c(Type::bf16, {0, 3, 7}, {0, 0, 6}, 2, 2, 64);
  c.fill_normal(57);
  RUN_OR_SKIP(c.forward(kernel()));
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t i = 0; i < 3; ++i) expect_empty_row(c, 0, i, h);
  Call one = alone(c, 3, 4, 0, 6);
  RUN_OR_SKIP(one.forward(kernel()));
  expect_rows_equal(c, 3, one);
  Packed none(Type::bf16, {0, 3, 7}, {0, 0, 0}, 2, 2, 64);
  none.fill_normal(58);
  RUN_OR_SKIP(none.forward(kernel()));
  for (int64_t h = 0; h < 2; ++h)
    for (int64_t i = 0; i < 7; ++i) expect_empty_row(none, 0, i, h);
}

// facebookresearch/xformers#1122: offsets past the tensor read foreign memory.
TEST_P(Varlen, xformers_1122) {
  for (const int64_t keys : {1, 2, 10, 17}) {
    Packed c(Type::f32, {0, 10}, {0, keys}, 4, 4, 8);
    c.fill_normal(59);
    c.cu_k = int32s({0, 20});
    const Status status = c.forward(kernel());
    if (status.code == TW_UNSUPPORTED) GTEST_SKIP() << status.message.chars;
    expect_bad_number(status, "cu_seqlens_k");
    EXPECT_TRUE(on_gpu() || std::isnan(c.out.at(0, 0, 0, 0))) << "outputs stay untouched";
  }
}

// jax-ml/jax#23349: lengths have no effect, so padding leaks in.
TEST_P(Varlen, jax_23349) {
  const std::vector<int64_t> lengths{24, 125, 53, 28, 77, 96, 13, 114};
  Call c(Type::bf16, {.batch = 8, .seqlen_q = 128, .seqlen_k = 128, .heads = 4, .heads_kv = 4, .head_dim = 16});
  c.fill_normal(60);
  const Stored used = int32s(lengths);
  c.a.seqused_k = used.view();
  expect_like_reference(c, kernel());
  Call other = c;
  for (Stored* t : {&other.k, &other.v})
    t->each([&](int64_t b, int64_t j, int64_t h, int64_t d) {
      if (j >= lengths[b]) t->set(1e3, b, j, h, d);
    });
  RUN_OR_SKIP(c.forward(kernel()));
  RUN_OR_SKIP(other.forward(kernel()));
  EXPECT_TRUE(same_bits(c.out, other.out) && same_bits(c.lse, other.lse));
}

// Dao-AILab/flash-attention#1745: NaN past the used length of a cache reaches the output.
TEST_P(Varlen, flash_attention_1745) {
  for (const double beyond : {double{NAN}, kInf})
    for (const int which : {1, 2, 3}) {
      Call c(Type::f16, {.batch = 2, .seqlen_q = 1, .seqlen_k = 3});
      c.fill_normal(61);
      c.fill(c.q, 0.5);
      const Stored used = int32s({1, 3});
      c.a.seqused_k = used.view();
      Call clean = c;
      for (Stored* t : {which & 1 ? &c.k : nullptr, which & 2 ? &c.v : nullptr})
        if (t)
          t->each([&](int64_t b, int64_t j, int64_t h, int64_t d) {
            if (b == 0 && j >= 1) t->set(beyond, b, j, h, d);
          });
      RUN_OR_SKIP(clean.forward(kernel()));
      RUN_OR_SKIP(c.forward(kernel()));
      EXPECT_TRUE(same_bits(c.out, clean.out));
    }
}

// Dao-AILab/flash-attention#772: the row of a cache with a batch stride of 2^30 elements is computed in 32 bits.
TEST_P(Varlen, flash_attention_772) {
  Call c(Type::f16, {.batch = 4, .seqlen_q = 1, .seqlen_k = 8});
  c.fill_normal(62);
  const Stored rows = int32s({1, 2, 3, 4});
  Stored cache(Type::f16, {5, 8, 1, 64});
  c.k.each([&](int64_t b, int64_t j, int64_t h, int64_t d) { cache.set(c.k.at(b, j, h, d), b + 1, j, h, d); });
  Call indexed = c;
  indexed.k = cache;
  indexed.v = Stored(Type::f16, {5, 8, 1, 64});
  c.v.each([&](int64_t b, int64_t j, int64_t h, int64_t d) { indexed.v.set(c.v.at(b, j, h, d), b + 1, j, h, d); });
  indexed.a.batch_index_k = rows.view();
  RUN_OR_SKIP(c.forward(kernel()));
  RUN_OR_SKIP(indexed.forward(kernel()));
  EXPECT_TRUE(same_bits(c.out, indexed.out));
  for (const int64_t bad : {-1, 5}) {
    const Stored wrong = int32s({1, 2, bad, 4});
    indexed.a.batch_index_k = wrong.view();
    expect_bad_number(indexed.forward(kernel()), "batch_index_k");
  }
}

// flashinfer-ai/flashinfer#3716: the tail of the last page is counted, unless the length is a multiple of the tile.
TEST_P(Varlen, flashinfer_3716) {
  for (const uint32_t flags : {0u, uint32_t{TW_CAUSAL}})
    for (const int64_t keys : {1, 15, 16, 17, 100, 255, 256, 257}) {
      Call c(Type::bf16, {.seqlen_q = 1, .seqlen_k = 272, .heads = 8, .heads_kv = 8, .head_dim = 128});
      c.fill_normal(63);
      c.fill(c.q, 0);
      const Stored used = int32s({keys});
      c.a.seqused_k = used.view(), c.a.flags = flags;
      RUN_OR_SKIP(c.forward(kernel()));
      for (int64_t h = 0; h < 8; ++h) expect_mean(c, 0, 0, h, 0, keys);
    }
}

// huggingface/transformers#46765: NaN in the row and keys of one sequence spoils its batch mates.
TEST_P(Varlen, transformers_46765) {
  Packed c(Type::bf16, {0, 1, 2, 3, 4}, {0, 20, 60, 61, 80}, 4, 2, 64);
  c.fill_normal(64);
  Stored before;
  for (const bool poisoned : {false, true}) {
    if (poisoned) {
      c.q.each([&](int64_t a, int64_t i, int64_t h, int64_t d) {
        if (i == 3) c.q.set(NAN, a, i, h, d);
      });
      for (Stored* t : {&c.k, &c.v})
        t->each([&](int64_t a, int64_t j, int64_t h, int64_t d) {
          if (j >= 61) t->set(NAN, a, j, h, d);
        });
    }
    RUN_OR_SKIP(c.forward(kernel()));
    if (!poisoned) before = c.out;
  }
  c.out.each([&](int64_t a, int64_t i, int64_t h, int64_t d) {
    ASSERT_TRUE(i == 3 || c.out.at(a, i, h, d) == before.at(a, i, h, d)) << "row " << i;
  });
}

// Dao-AILab/flash-attention#978: lse of rows without keys is +inf.
TEST_P(Varlen, flash_attention_978) {
  Call causal(Type::f32, {.seqlen_q = 5, .seqlen_k = 2, .head_dim = 8});
  causal.fill_normal(65);
  causal.a.flags = TW_CAUSAL;
  RUN_OR_SKIP(causal.forward(kernel()));
  for (int64_t i = 0; i < 3; ++i) expect_empty_row(causal, 0, i, 0);
  Packed packed(Type::f32, {0, 2, 4}, {0, 0, 3}, 1, 1, 8);
  packed.fill_normal(66);
  RUN_OR_SKIP(packed.forward(kernel()));
  for (int64_t i = 0; i < 2; ++i) expect_empty_row(packed, 0, i, 0);
}

// flashinfer-ai/flashinfer#4452: masked rows of a causal prefill get a finite lse.
TEST_P(Varlen, flashinfer_4452) {
  Call c(Type::bf16, {.seqlen_q = 40, .seqlen_k = 7, .heads = 32, .heads_kv = 32});
  c.fill(c.q, 0), c.fill(c.k, 0), c.fill(c.v, 1);
  c.a.flags = TW_CAUSAL;
  RUN_OR_SKIP(c.forward(kernel()));
  for (int64_t i = 0; i < 40; ++i) {
    if (i < 33) {
      expect_empty_row(c, 0, i, 31);
    } else {
      expect_row(c, 0, i, 31, 1, std::log(double(i - 32)), 0);
    }
  }
}

// Dao-AILab/flash-attention#1217: packed input and more than one split give wrong results.
TEST_P(Varlen, flash_attention_1217) {
  Packed c(Type::f32, {0, 1, 4, 6}, {0, 700, 765, 2065}, 8, 2, 64);
  c.fill_normal(67);
  c.a.flags = TW_CAUSAL;
  expect_like_reference(c, kernel(), false);
  const Stored one = c.out;
  for (const int splits : {1, 2, 3, 7}) {
    c.a.num_splits = splits;
    RUN_OR_SKIP(c.forward(kernel()));
    EXPECT_LE(difference(c.out, one), tolerance(Type::f32)) << splits << " splits";
  }
}

// vllm-project/flash-attention#87: lse is permuted when heads are regrouped as rows.
TEST_P(Varlen, vllm_flash_attention_87) {
  Packed c(Type::f32, {0, 1, 2, 3}, {0, 700, 1400, 2100}, 8, 2, 64);
  c.fill_normal(68);
  c.a.num_splits = 4;
  expect_like_reference(c, kernel(), false);
}

// Dao-AILab/flash-attention#1417: the same live keys in a larger cache give another result.
TEST_P(Varlen, flash_attention_1417) {
  const int64_t live = 700;
  const Stored used = int32s({live});
  Call small(Type::bf16, {.seqlen_q = 2, .seqlen_k = live, .heads = 4, .heads_kv = 4, .head_dim = 128});
  small.fill_normal(62);
  RUN_OR_SKIP(small.forward(kernel()));
  for (const int64_t capacity : {1024, 8192}) {
    Call c(Type::bf16, {.seqlen_q = 2, .seqlen_k = capacity, .heads = 4, .heads_kv = 4, .head_dim = 128});
    c.q = small.q, c.a.seqused_k = used.view();
    small.k.each([&](int64_t a, int64_t j, int64_t h, int64_t d) {
      c.k.set(small.k.at(a, j, h, d), a, j, h, d), c.v.set(small.v.at(a, j, h, d), a, j, h, d);
    });
    RUN_OR_SKIP(c.forward(kernel()));
    EXPECT_LE(difference(c.out, small.out), tolerance(c.type) * largest(small.out)) << capacity;
  }
}

}  // namespace
}  // namespace tilewise::reports
