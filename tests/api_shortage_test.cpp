// Every allocation of a call fails once, and every thread that it starts: a named error or the right answer, outputs
// untouched by an error, nothing lost, and the next call works.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>

#include "allocations.h"
#include "api_call.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::test {
namespace {

class Shortages : public testing::Test {
 protected:
  void SetUp() override {
    if (!kAllocationsAreCounted) GTEST_SKIP() << "a sanitizer has an allocator of its own";
    right_.a.threads = 1;
    ASSERT_EQ(right_.forward(), TW_OK);
    ASSERT_EQ(right_.backward(), TW_OK);
  }

  bool is_right(const Call& c) const { return c.out == right_.out && c.lse == right_.lse; }
  bool is_right_backward(const Call& c) const { return c.dq == right_.dq && c.dk == right_.dk && c.dv == right_.dv; }

  // One way to call, with a fresh Call each time; how many of its requests there are to fail.
  template <class Way, class Untouched, class Right>
  int64_t each_request_fails(Resource resource, Way way, Untouched untouched, Right right) {
    for (int64_t n = 1;; ++n) {
      SCOPED_TRACE(n);
      Call c;
      c.a.threads = 8;
      const int64_t held = blocks_held();
      tw_status status;
      bool felt;
      {
        const Shortage shortage(resource, n, 1);
        status = way(c);
        felt = shortage.was_felt();
      }
      EXPECT_EQ(blocks_held(), held);
      EXPECT_TRUE(status == TW_OK || (felt && status == TW_OUT_OF_MEMORY)) << tw_status_name(status);
      EXPECT_TRUE(status == TW_OK ? right(c) : untouched(c));
      EXPECT_TRUE(status == TW_OK || last_error_has("no memory for a workspace of")) << tw_last_error();
      EXPECT_EQ(way(c), TW_OK) << "the next call works: " << tw_last_error();
      EXPECT_TRUE(right(c));
      if (!felt) return n - 1;
    }
  }

  Call right_;
};

// In a child, whose pool has no threads yet. Its exit code: what became of the call when request n failed.
enum FirstUse { kFelt = 10, kNotFelt = 11, kBroken = 12 };

template <class Broken>
int first_use(Resource resource, int64_t n, int64_t count, Broken broken) {
  const pid_t child = fork();
  if (child == 0) {
    Call c;
    c.a.threads = 8;
    tw_status status;
    bool felt;
    {
      const Shortage shortage(resource, n, count);
      status = c.forward();
      felt = shortage.was_felt();
    }
    if (broken(c, status)) _exit(kBroken);
    if (c.forward() != TW_OK || broken(c, TW_OK)) _exit(kBroken);
    const int64_t held = blocks_held();
    if (c.forward() != TW_OK || blocks_held() != held) _exit(kBroken);
    _exit(felt ? kFelt : kNotFelt);
  }
  int status = -1;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// First, before any thread has left a stack to be used again.
TEST_F(Shortages, InTheFirstUseOfThreads) {
  const auto broken = [&](const Call& c, tw_status status) {
    if (status == TW_OUT_OF_MEMORY) return !c.forward_is_untouched();
    return status != TW_OK || !is_right(c);
  };
  for (const Resource resource : {Resource::memory, Resource::threads}) {
    for (const int64_t count : {int64_t{1}, INT64_MAX}) {
      int outcome = kFelt;
      int64_t n = 0;
      while (outcome == kFelt) outcome = first_use(resource, ++n, count, broken);
      EXPECT_EQ(outcome, kNotFelt) << "request " << n;
      EXPECT_GT(n, 3) << "the test sees the workspace and threads that start";
    }
  }
}

tw_status forward_of(Call& c) { return c.forward(); }
tw_status backward_of(Call& c) { return c.backward(); }

TEST_F(Shortages, InOneShotCalls) {
  const auto right = [&](const Call& c) { return is_right(c); };
  const auto right_backward = [&](const Call& c) { return is_right_backward(c); };
  const auto untouched = [](const Call& c) { return c.forward_is_untouched(); };
  const auto untouched_backward = [](const Call& c) { return c.backward_is_untouched(); };
  const auto with_forward = [&](Call& c) {
    c.out = right_.out, c.lse = right_.lse;
    return backward_of(c);
  };
  EXPECT_GT(each_request_fails(Resource::memory, forward_of, untouched, right), 0) << "the test sees the workspace";
  Call warm;
  warm.out = right_.out, warm.lse = right_.lse;
  ASSERT_EQ(backward_of(warm), TW_OK);
  // The copies inside with_forward take nothing: the vectors are as long already.
  EXPECT_GT(each_request_fails(Resource::memory, with_forward, untouched_backward, right_backward), 0);
}

// Everything but one-shot calls goes on without memory.
TEST_F(Shortages, AreNotFeltByPlansRunsMergesAndQuestions) {
  Call c;
  c.a.threads = 4;
  ASSERT_EQ(c.forward(), TW_OK);  // threads start, once
  std::vector<char> memory(1 << 20);
  tw_exec e;
  TW_INIT(e);
  e.workspace = memory.data() + (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256);
  e.workspace_bytes = memory.size() - 256;
  Call run, merged;
  run.a.threads = 4;
  tw_merge m;
  TW_INIT(m);
  m.device_type = TW_CPU;
  m.parts = 1;
  m.out_parts = right_.a.out, m.lse_parts = right_.a.lse, m.out = merged.a.out, m.lse = merged.a.lse;
  tw_plan plan, backward;
  char text[4096];
  tw_status statuses[5];
  bool felt;
  tw_info(text, sizeof text);  // opens the CUDA back end, once
  {
    const Shortage shortage(Resource::memory);
    statuses[0] = tw_attention_plan(&run.a, nullptr, &plan);
    statuses[1] = tw_attention_run(&plan, &run.a, nullptr, &e);
    statuses[2] = tw_attention_plan(&run.a, &run.g, &backward);
    statuses[3] = tw_attention_run(&backward, &run.a, &run.g, &e);
    statuses[4] = tw_attention_merge(&m, nullptr);
    tw_attention_explain(&run.a, &run.g, text, sizeof text);
    tw_info(text, sizeof text);
    felt = shortage.was_felt();
  }
  for (const tw_status status : statuses) EXPECT_EQ(status, TW_OK);
  EXPECT_FALSE(felt);
  EXPECT_TRUE(is_right(run) && is_right_backward(run));
  EXPECT_EQ(merged.out, right_.out);
}

// The C++ shell takes memory for the message of a failure: without it std::bad_alloc says so.
TEST_F(Shortages, InTheShell) {
  Call c;
  const Attention wrong{.q = {c.q, 2, 3, 4, 8}, .k = {c.k, 2, 5, 2, 8}, .v = {c.v, 2, 5, 2, 6}, .threads = -1};
  const Attention attention{
      .q = {c.q, 2, 3, 4, 8}, .k = {c.k, 2, 5, 2, 8}, .v = {c.v, 2, 5, 2, 6}, .out = {c.out, 2, 3, 4, 6}};
  const int64_t held = blocks_held();
  bool threw = false;
  tw_status status = TW_OK;
  {
    const Shortage shortage(Resource::memory);
    try {
      (void)forward(wrong);
    } catch (const std::bad_alloc&) {
      threw = true;
    }
  }
  EXPECT_TRUE(threw);
  {
    const Shortage shortage(Resource::memory, 1, 1);
    status = forward(attention).status;
  }
  EXPECT_EQ(status, TW_OUT_OF_MEMORY);
  EXPECT_EQ(blocks_held(), held);
  EXPECT_TRUE(c.forward_is_untouched());
  EXPECT_TRUE(forward(attention));
}

}  // namespace
}  // namespace tilewise::test
