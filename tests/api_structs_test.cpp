// Sized structs: layouts that never change, older and longer callers, zero as every default.
#include <gtest/gtest.h>

#include <cstddef>

#include "api_call.h"

namespace tilewise::test {
namespace {

TEST(ApiLayout, Sizes) {
  EXPECT_EQ(sizeof(tw_tensor), 80u);
  EXPECT_EQ(sizeof(tw_attention), 2184u);
  EXPECT_EQ(sizeof(tw_attention_grad), 568u);
  EXPECT_EQ(sizeof(tw_plan), 256u);
  EXPECT_EQ(sizeof(tw_thread_pool), 24u);
  EXPECT_EQ(sizeof(tw_fault), 16u);
  EXPECT_EQ(sizeof(tw_exec), 48u);
  EXPECT_EQ(sizeof(tw_merge), 360u);
  EXPECT_EQ(sizeof(tw_append), 576u);
  EXPECT_EQ(sizeof(tw_page_copy), 8u);
}

TEST(ApiLayout, OffsetsOfTensor) {
  EXPECT_EQ(offsetof(tw_tensor, data), 0u);
  EXPECT_EQ(offsetof(tw_tensor, shape), 8u);
  EXPECT_EQ(offsetof(tw_tensor, stride), 40u);
  EXPECT_EQ(offsetof(tw_tensor, dtype), 72u);
  EXPECT_EQ(offsetof(tw_tensor, reserved), 76u);
}

TEST(ApiLayout, OffsetsOfAttention) {
  const size_t tensor = sizeof(tw_tensor);
  EXPECT_EQ(offsetof(tw_attention, flags), 4u);
  EXPECT_EQ(offsetof(tw_attention, device_type), 8u);
  EXPECT_EQ(offsetof(tw_attention, threads), 16u);
  EXPECT_EQ(offsetof(tw_attention, num_splits), 24u);
  EXPECT_EQ(offsetof(tw_attention, q), 32u);
  EXPECT_EQ(offsetof(tw_attention, lse), 32 + 4 * tensor);
  EXPECT_EQ(offsetof(tw_attention, cu_seqlens_q), 32 + 5 * tensor);
  EXPECT_EQ(offsetof(tw_attention, block_table), 32 + 11 * tensor);
  EXPECT_EQ(offsetof(tw_attention, max_seqlen_q), 32 + 12 * tensor);
  EXPECT_EQ(offsetof(tw_attention, q_scale), 48 + 12 * tensor);
  EXPECT_EQ(offsetof(tw_attention, softmax_scale), 48 + 15 * tensor);
  EXPECT_EQ(offsetof(tw_attention, bias), 64 + 15 * tensor);
  EXPECT_EQ(offsetof(tw_attention, window_left), 64 + 17 * tensor);
  EXPECT_EQ(offsetof(tw_attention, mask), 88 + 17 * tensor);
  EXPECT_EQ(offsetof(tw_attention, sink), 88 + 22 * tensor);
  EXPECT_EQ(offsetof(tw_attention, dropout_seed), 88 + 23 * tensor);
  EXPECT_EQ(offsetof(tw_attention, dropout_state), 104 + 23 * tensor);
  EXPECT_EQ(offsetof(tw_attention, prior_out), 104 + 24 * tensor);
  EXPECT_EQ(sizeof(tw_attention), 104 + 26 * tensor);
}

TEST(ApiLayout, OffsetsOfOthers) {
  const size_t tensor = sizeof(tw_tensor);
  EXPECT_EQ(offsetof(tw_attention_grad, dout), 8u);
  EXPECT_EQ(offsetof(tw_attention_grad, dsink), 8 + 6 * tensor);
  EXPECT_EQ(offsetof(tw_exec, stream), 8u);
  EXPECT_EQ(offsetof(tw_exec, workspace_bytes), 24u);
  EXPECT_EQ(offsetof(tw_exec, fault), 40u);
  EXPECT_EQ(offsetof(tw_merge, parts), 16u);
  EXPECT_EQ(offsetof(tw_merge, out_parts), 40u);
  EXPECT_EQ(offsetof(tw_thread_pool, parallel_for), 16u);
}

TEST(ApiLayout, Numbers) {
  EXPECT_EQ(TW_CPU, 1);
  EXPECT_EQ(TW_CUDA, 2);
  EXPECT_EQ(TW_F32, 1);
  EXPECT_EQ(TW_BF16, 3);
  EXPECT_EQ(TW_I64, 9);
  EXPECT_EQ(TW_CAUSAL, 1);
  EXPECT_EQ(TW_MASK_TAIL, 32);
  EXPECT_EQ(TW_BATCH_INVARIANT, 512);
  EXPECT_EQ(TW_INTERNAL, 7);
}

// A struct of another age: the bytes of `value`, cut or followed by a tail.
template <class Struct>
struct OtherAge {
  alignas(Struct) char bytes[sizeof(Struct) + 64] = {};

  OtherAge(const Struct& value, size_t size) {
    std::memcpy(bytes, &value, std::min(size, sizeof(Struct)));
    std::memset(bytes + std::min(size, sizeof(Struct)), 0, sizeof bytes - std::min(size, sizeof(Struct)));
    resize(static_cast<uint32_t>(size));
  }
  void resize(uint32_t size) { std::memcpy(bytes, &size, sizeof size); }
  const Struct* get() const { return reinterpret_cast<const Struct*>(bytes); }
};

TEST(ApiGrowth, OlderCallersLackTheEnd) {
  Call c;
  OtherAge<tw_attention> older(c.a, offsetof(tw_attention, prior_out));
  std::memset(older.bytes + offsetof(tw_attention, prior_out), 0x55, 2 * sizeof(tw_tensor));  // not theirs to write
  EXPECT_EQ(tw_attention_forward(older.get(), nullptr), TW_OK) << tw_last_error();
  const std::vector<float> out = c.out;
  EXPECT_EQ(c.forward(), TW_OK);
  EXPECT_EQ(out, c.out);

  OtherAge<tw_attention_grad> grad(c.g, offsetof(tw_attention_grad, dbias));
  EXPECT_EQ(tw_attention_backward(&c.a, grad.get(), nullptr), TW_OK) << tw_last_error();
}

TEST(ApiGrowth, LongerStructsMayHoldZeros) {
  Call c;
  OtherAge<tw_attention> longer(c.a, sizeof(tw_attention) + 64);
  EXPECT_EQ(tw_attention_forward(longer.get(), nullptr), TW_OK) << tw_last_error();
}

TEST(ApiGrowth, UnknownOptionsAreNeverDropped) {
  Call c;
  OtherAge<tw_attention> longer(c.a, sizeof(tw_attention) + 64);
  longer.bytes[sizeof(tw_attention) + 40] = 1;
  EXPECT_EQ(tw_attention_forward(longer.get(), nullptr), TW_UNSUPPORTED);
  EXPECT_TRUE(last_error_has("problem.struct_size is 2248 and byte 2224 is not 0")) << tw_last_error();
  OtherAge<tw_attention_grad> grad(c.g, sizeof(tw_attention_grad) + 8);
  grad.bytes[sizeof(tw_attention_grad)] = 1;
  EXPECT_EQ(tw_attention_backward(&c.a, grad.get(), nullptr), TW_UNSUPPORTED);
  EXPECT_TRUE(last_error_has("grad.struct_size")) << tw_last_error();
  tw_exec e;
  TW_INIT(e);
  OtherAge<tw_exec> exec(e, sizeof e + 8);
  exec.bytes[sizeof e + 7] = 1;
  EXPECT_EQ(tw_attention_forward(&c.a, exec.get()), TW_UNSUPPORTED);
  EXPECT_TRUE(last_error_has("exec.struct_size")) << tw_last_error();
  EXPECT_TRUE(c.forward_is_untouched());
}

TEST(ApiGrowth, ASizeThatWasNeverWritten) {
  Call c;
  for (uint32_t size : {0u, 4u, 12u, 0xCDCDCDCDu}) {
    c.a.struct_size = size;
    EXPECT_EQ(c.forward(), TW_INVALID_ARGUMENT);
    EXPECT_TRUE(last_error_has("problem.struct_size is")) << tw_last_error();
    EXPECT_TRUE(last_error_has("TW_INIT")) << tw_last_error();
  }
}

TEST(ApiExec, EachFieldIsChecked) {
  Call c;
  tw_exec e;
  TW_INIT(e);
  e.reserved = 1;
  EXPECT_EQ(tw_attention_forward(&c.a, &e), TW_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_has("exec.reserved is 1"));
  TW_INIT(e);
  e.stream = &c;
  EXPECT_EQ(tw_attention_forward(&c.a, &e), TW_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_has("exec.stream is"));
  TW_INIT(e);
  tw_thread_pool pool;
  TW_INIT(pool);
  e.pool = &pool;
  EXPECT_EQ(tw_attention_forward(&c.a, &e), TW_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_has("exec.pool.parallel_for is NULL"));
  pool.struct_size = 0;
  EXPECT_EQ(tw_attention_forward(&c.a, &e), TW_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_has("exec.pool.struct_size is 0"));
  EXPECT_TRUE(c.forward_is_untouched());
}

TEST(ApiExec, FaultIsForCuda) {
  Call c;
  tw_fault fault = {};
  tw_exec e;
  TW_INIT(e);
  e.fault = &fault;
  c.a.seqused_k = c.extra(TW_I32, std::vector<int32_t>{9, 0});
  EXPECT_EQ(tw_attention_forward(&c.a, &e), TW_INVALID_ARGUMENT);  // the CPU tells at once
  EXPECT_EQ(fault.code, 0);
}

TEST(ApiDefaults, ScaleIsOneOverRootD) {
  Call c;
  ASSERT_EQ(c.forward(), TW_OK);
  const std::vector<float> out = c.out;
  c.a.flags = TW_SOFTMAX_SCALE;
  c.a.softmax_scale = 0.35355339059327379f;
  ASSERT_EQ(c.forward(), TW_OK);
  EXPECT_EQ(out, c.out);
}

// Contract: every optional tensor absent, every number 0: plain attention over all keys.
TEST(ApiDefaults, ZeroIsPlainAttention) {
  Call c;
  c.a.flags = TW_SOFTMAX_SCALE;
  c.a.softmax_scale = 0;
  ASSERT_EQ(c.forward(), TW_OK);
  for (int64_t b = 0; b < Call::kB; ++b) {
    for (int64_t i = 0; i < Call::kSq; ++i) {
      for (int64_t h = 0; h < Call::kH; ++h) {
        float mean = 0;
        for (int64_t j = 0; j < Call::kSk; ++j) {
          mean += c.v[static_cast<size_t>(((b * Call::kSk + j) * Call::kHk + h / 2) * Call::kDv)] / Call::kSk;
        }
        EXPECT_NEAR(c.out[static_cast<size_t>(((b * Call::kSq + i) * Call::kH + h) * Call::kDv)], mean, 1e-6f);
      }
    }
  }
}

TEST(ApiStatus, NamesAndVersion) {
  EXPECT_STREQ(tw_status_name(TW_OK), "TW_OK");
  EXPECT_STREQ(tw_status_name(TW_INVALID_ARGUMENT), "TW_INVALID_ARGUMENT");
  EXPECT_STREQ(tw_status_name(TW_UNSUPPORTED), "TW_UNSUPPORTED");
  EXPECT_STREQ(tw_status_name(TW_PLAN_MISMATCH), "TW_PLAN_MISMATCH");
  EXPECT_STREQ(tw_status_name(TW_WORKSPACE_TOO_SMALL), "TW_WORKSPACE_TOO_SMALL");
  EXPECT_STREQ(tw_status_name(TW_OUT_OF_MEMORY), "TW_OUT_OF_MEMORY");
  EXPECT_STREQ(tw_status_name(TW_DEVICE_ERROR), "TW_DEVICE_ERROR");
  EXPECT_STREQ(tw_status_name(TW_INTERNAL), "TW_INTERNAL");
  EXPECT_STREQ(tw_status_name(99), "unknown status");
  EXPECT_EQ(tw_version(), TW_VERSION);
}

}  // namespace
}  // namespace tilewise::test
