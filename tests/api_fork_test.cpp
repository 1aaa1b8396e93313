// A fork, whatever other threads are doing: the child computes as before. A program of its own, since here the test may
// be the first to use the library.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "api_call.h"

namespace tilewise::test {
namespace {

#ifdef __SANITIZE_THREAD__
}  // namespace
}  // namespace tilewise::test

// TSan does not know that a child has none of its parent's threads, and takes new ones for them.
extern "C" const char* __tsan_default_options() { return "report_thread_leaks=0"; }

namespace tilewise::test {
namespace {
constexpr int32_t kThreadsOfChild = 1;
#else
constexpr int32_t kThreadsOfChild = 4;
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kChildMayAllocate = false;
#else
constexpr bool kChildMayAllocate = true;
#endif
constexpr const char* kWhyNot =
    "sanitizers keep no fork out of their allocator, as glibc does: a child may find it locked";
constexpr unsigned kPatience = 30;  // seconds, after which a child that hangs is ended

// Returns the child's exit code, or what ended it.
template <class Compute>
int status_of_child(Compute compute) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kPatience);
    _exit(compute() ? 0 : 1);
  }
  int status = -1;
  return waitpid(child, &status, 0) == child ? status : -1;
}

bool computes(int32_t threads) {
  Call c;
  c.a.threads = threads;
  return c.forward() == TW_OK && c.backward() == TW_OK;
}

// In a child that has not used the library yet: one thread's first call, and another's fork in the midst of it.
bool forks_during_first_call(std::chrono::microseconds delay) {
  std::atomic<bool> started{false};
  std::thread first([&] {
    started = true;
    computes(kThreadsOfChild);
  });
  while (!started) continue;
  const auto now = [] { return std::chrono::steady_clock::now(); };
  for (const auto until = now() + delay; now() < until;) continue;
  const bool computed = status_of_child([] { return computes(kThreadsOfChild); }) == 0;
  first.join();
  return computed;
}

TEST(Fork, DuringTheFirstCall) {
  if (!kChildMayAllocate) GTEST_SKIP() << kWhyNot;
  for (int repeat = 0; repeat < 60; ++repeat) {
    const std::chrono::microseconds delay(5 * repeat);
    ASSERT_EQ(status_of_child([&] { return forks_during_first_call(delay); }), 0) << repeat;
  }
}

TEST(Fork, WhileOthersCompute) {
  if (!kChildMayAllocate) GTEST_SKIP() << kWhyNot;
  std::atomic<bool> enough{false};
  std::thread others[3];
  for (std::thread& other : others) {
    other = std::thread([&] {
      while (!enough) computes(4);
    });
  }
  for (int repeat = 0; repeat < 30; ++repeat)
    EXPECT_EQ(status_of_child([] { return computes(kThreadsOfChild); }), 0) << repeat;
  enough = true;
  for (std::thread& other : others) other.join();
}

TEST(Fork, OfAForkAndTheParentAfterIt) {
  ASSERT_TRUE(computes(4));
  EXPECT_EQ(status_of_child([] {
              return computes(kThreadsOfChild) && status_of_child([] { return computes(kThreadsOfChild); }) == 0;
            }),
            0);
  EXPECT_TRUE(computes(4));
}

}  // namespace
}  // namespace tilewise::test
