// Structs with nothing in them: zero as every default; what may stand in exec; names of codes.
#include <gtest/gtest.h>

#include "api_call.h"

namespace tilewise::test {
namespace {

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
  c.a.device_type = TW_CUDA;
  e.fault = reinterpret_cast<tw_fault*>(reinterpret_cast<char*>(&fault) + 2);
  EXPECT_EQ(tw_attention_forward(&c.a, &e), TW_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_has("must be aligned to 4 bytes"));
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
