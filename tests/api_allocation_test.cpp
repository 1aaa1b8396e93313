// Plan and run allocate nothing, once the library's threads have started; one-shot calls give back what they take.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "api_call.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Every allocation of this program, the C library's own too, comes through here.
// NOLINTBEGIN(bugprone-reserved-identifier, readability-*)
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);
}

namespace {
std::atomic<int64_t> allocations{0}, frees{0};
std::atomic<bool> memory_has_run_out{false}, threads_have_run_out{false};
}  // namespace

extern "C" {
void* malloc(size_t bytes) { return ++allocations, __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) { return ++allocations, __libc_calloc(count, bytes); }
void* realloc(void* block, size_t bytes) { return ++allocations, __libc_realloc(block, bytes); }
void* memalign(size_t alignment, size_t bytes) { return ++allocations, __libc_memalign(alignment, bytes); }
void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** block, size_t alignment, size_t bytes) {
  *block = memory_has_run_out ? nullptr : memalign(alignment, bytes);
  return *block ? 0 : ENOMEM;
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* argument) {
  static const auto create = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return threads_have_run_out ? EAGAIN : create(thread, attributes, start, argument);
}
void free(void* block) {
  if (block) ++frees;
  __libc_free(block);
}
}
// NOLINTEND(bugprone-reserved-identifier, readability-*)

namespace tilewise::test {
namespace {

template <class F>
int64_t allocations_of(F f) {
  const int64_t before = allocations;
  f();
  return allocations - before;
}

TEST(Allocation, IsSeenByThisTest) {
  EXPECT_GT(allocations_of([] { std::vector<int> grows(100); }), 0);
}

class Planned : public testing::TestWithParam<int32_t> {};

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

TEST(Allocation, FailuresAndQuestionsTakeNothing) {
  Call c;
  tw_plan plan;
  char text[4096];
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

TEST(Allocation, OneShotCallsGiveBackWhatTheyTake) {
  Call c;
  ASSERT_EQ(c.backward(), TW_OK);
  const int64_t taken = allocations, given = frees;
  for (int repeat = 0; repeat < 10; ++repeat) {
    if (c.forward() != TW_OK || c.backward() != TW_OK) std::abort();
  }
  EXPECT_EQ(allocations - taken, frees - given);
}

TEST(Allocation, NoMemoryForTheWorkspace) {
  Call c;
  memory_has_run_out = true;
  const tw_status forward = c.forward(), backward = c.backward();
  memory_has_run_out = false;
  EXPECT_EQ(forward, TW_OUT_OF_MEMORY);
  EXPECT_EQ(backward, TW_OUT_OF_MEMORY);
  EXPECT_TRUE(last_error_has("no memory for a workspace of")) << tw_last_error();
  EXPECT_TRUE(c.forward_is_untouched() && c.backward_is_untouched());
}

TEST(Allocation, AThreadThatCannotStartIsNoError) {
  Call one, many;
  one.a.threads = 1;
  many.a.threads = 40;
  ASSERT_EQ(one.forward(), TW_OK);
  threads_have_run_out = true;
  EXPECT_EQ(many.forward(), TW_OK) << tw_last_error();
  threads_have_run_out = false;
  EXPECT_EQ(one.out, many.out);
  EXPECT_EQ(many.forward(), TW_OK) << "and they start when they can";
  EXPECT_EQ(one.out, many.out);
}

TEST(Allocation, MergeTakesNothing) {
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
#endif
