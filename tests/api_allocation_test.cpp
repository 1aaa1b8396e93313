// Plan and run allocate nothing, once the library's threads have started; one-shot calls give back what they take.
#include <gtest/gtest.h>

#include <cstdlib>

#include "allocations.h"
#include "api_call.h"

namespace tilewise::test {
namespace {

class Allocation : public testing::Test {
 protected:
  void SetUp() override {
    if (!kAllocationsAreCounted) GTEST_SKIP() << "a sanitizer has an allocator of its own";
  }
};

template <class F>
int64_t allocations_of(F f) {
  const int64_t before = allocations();
  f();
  return allocations() - before;
}

TEST_F(Allocation, IsSeenByThisTest) {
  EXPECT_GT(allocations_of([] { std::vector<int> grows(100); }), 0);
}

class Planned : public Allocation, public testing::WithParamInterface<int32_t> {};

TEST_P(Planned, PlanAndRunTakeNothing) {
  Call c;
  c.a.threads = GetParam();
  c.a.seqused_k = c.extra(TW_I32, std::vector<int32_t>{3, 5});
  c.a.dropout_p = 0.5f;
  tw_plan forward, backward;
  EXPECT_EQ(c.backward(), TW_OK) << tw_last_error();  // threads start, once
  EXPECT_EQ(allocations_of([&] {
              if (tw_attention_plan(&c.a, nullptr, &forward) != TW_OK) std::abort();
              if (tw_attention_plan(&c.a, &c.g, &backward) != TW_OK) std::abort();
            }),
            0);
  std::vector<char> memory(std::max(forward.workspace_bytes, backward.workspace_bytes) + 256);
  tw_exec e;
  TW_INIT(e);
  e.workspace = memory.data() + (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256);
  e.workspace_bytes = memory.size() - 256;
  EXPECT_EQ(allocations_of([&] {
              for (int repeat = 0; repeat < 20; ++repeat) {
                if (tw_attention_run(&forward, &c.a, nullptr, &e) != TW_OK) std::abort();
                if (tw_attention_run(&backward, &c.a, &c.g, &e) != TW_OK) std::abort();
              }
            }),
            0);
}
INSTANTIATE_TEST_SUITE_P(Api, Planned, testing::Values(1, 4));

TEST_F(Allocation, FailuresAndQuestionsTakeNothing) {
  Call c;
  tw_plan plan;
  char text[4096];
  tw_info(text, sizeof text);  // opens the CUDA back end, once
  EXPECT_EQ(allocations_of([&] {
              c.a.threads = -1;
              if (c.forward() != TW_INVALID_ARGUMENT) std::abort();
              if (tw_attention_plan(&c.a, nullptr, &plan) != TW_INVALID_ARGUMENT) std::abort();
              tw_attention_explain(&c.a, nullptr, text, sizeof text);
              c.a.threads = 0;
              tw_attention_explain(&c.a, nullptr, text, sizeof text);
              tw_info(text, sizeof text);
            }),
            0);
}

TEST_F(Allocation, OneShotCallsGiveBackWhatTheyTake) {
  Call c;
  ASSERT_EQ(c.backward(), TW_OK);
  const int64_t held = blocks_held();
  for (int repeat = 0; repeat < 10; ++repeat) {
    if (c.forward() != TW_OK || c.backward() != TW_OK) std::abort();
  }
  EXPECT_EQ(blocks_held(), held);
}

TEST_F(Allocation, MergeTakesNothing) {
  Call c;
  tw_merge m;
  TW_INIT(m);
  m.device_type = TW_CPU;
  m.parts = 1;
  m.out_parts = c.a.out, m.lse_parts = c.a.lse;
  m.out = c.extra(TW_F32, Call::kB, Call::kSq, Call::kH, Call::kDv);
  EXPECT_EQ(allocations_of([&] {
              if (tw_attention_merge(&m, nullptr) != TW_OK) std::abort();
            }),
            0);
}

}  // namespace
}  // namespace tilewise::test
