// Threads: the library's own, a host's, several callers at once, a fork. Results are the same bits in every case.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <limits>
#include <thread>

#include "api_call.h"
#include "core/threads.h"

namespace tilewise::test {
namespace {

struct Counts {
  std::vector<std::atomic<int>> calls;
  explicit Counts(size_t count) : calls(count) {}
  static void count(void* context, int64_t i) { ++static_cast<Counts*>(context)->calls[static_cast<size_t>(i)]; }
  bool each_once() const {
    for (const auto& calls_of_one : calls) {
      if (calls_of_one != 1) return false;
    }
    return true;
  }
};

TEST(OwnThreads, RunEachTaskOnce) {
  for (size_t count : {0u, 1u, 2u, 3u, 17u, 1500u}) {
    Counts counts(count);
    own_threads()(static_cast<int64_t>(count), Counts::count, &counts);
    EXPECT_TRUE(counts.each_once()) << count;
  }
}

// A task may wait for one that has started: with as many threads as tasks all of them run at once.
TEST(OwnThreads, StartedTasksRunAtOnce) {
  struct Meeting {
    std::atomic<int> drawn{0}, first_is_in{0};
    static void attend(void* context, int64_t) {
      auto& m = *static_cast<Meeting*>(context);
      if (m.drawn++ == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        m.first_is_in = 1;
      }
      while (!m.first_is_in) std::this_thread::yield();
    }
  } meeting;
  own_threads()(8, Meeting::attend, &meeting);
  EXPECT_EQ(meeting.drawn, 8);
}

TEST(OwnThreads, ServeManyCallersAtOnce) {
  std::atomic<int> failures{0};
  std::thread callers[6];
  for (std::thread& caller : callers) {
    caller = std::thread([&] {
      for (size_t repeat = 0; repeat < 400; ++repeat) {
        Counts counts(1 + repeat % 7);
        own_threads()(static_cast<int64_t>(counts.calls.size()), Counts::count, &counts);
        failures += !counts.each_once();
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(failures, 0);
}

TEST(OwnThreads, MayBeUsedFromATask) {
  std::atomic<int> inner{0};
  own_threads()(
      3,
      [](void* context, int64_t) {
        own_threads()(
            3, [](void* count, int64_t) { ++*static_cast<std::atomic<int>*>(count); }, context);
      },
      &inner);
  EXPECT_EQ(inner, 9);
}

int threads_of_this_process() {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}));
}

TEST(OwnThreads, AreNoMoreThanTheCores) {
  const int before = threads_of_this_process();
  Call c;
  c.a.threads = std::numeric_limits<int32_t>::max();
  ASSERT_EQ(c.forward(), TW_OK);
  ASSERT_EQ(c.backward(), TW_OK);
  Counts counts(1500);
  own_threads()(1500, Counts::count, &counts);
  EXPECT_TRUE(counts.each_once());
  EXPECT_LE(threads_of_this_process(), before + std::max(8, available_cores()));
}

TEST(OwnThreads, SurviveAFork) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "TSan does not let a forked child start threads";
#endif
  Counts before(5);
  own_threads()(5, Counts::count, &before);
  const pid_t child = fork();
  if (child == 0) {
    Counts counts(5);
    own_threads()(5, Counts::count, &counts);
    Call c;
    c.a.threads = 3;
    _exit(counts.each_once() && c.forward() == TW_OK ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(OwnThreads, CoresAreThoseOfThisProcess) {
  EXPECT_GE(available_cores(), 1);
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all)) continue;
    CPU_SET(cpu, &one);
    break;
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(available_cores(), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof all, &all), 0);
}

// ---- A host's pool.

struct HostPool {
  tw_thread_pool pool;
  int64_t calls = 0, tasks = 0;
  bool reversed = false;

  explicit HostPool(bool backwards) : reversed(backwards) {
    TW_INIT(pool);
    pool.context = this;
    pool.parallel_for = [](void* context, int64_t count, void (*task)(void*, int64_t), void* task_context) {
      auto& host = *static_cast<HostPool*>(context);
      ++host.calls;
      host.tasks += count;
      for (int64_t i = 0; i < count; ++i) task(task_context, host.reversed ? count - 1 - i : i);
    };
  }
  tw_exec exec() const {
    tw_exec e;
    TW_INIT(e);
    e.pool = &pool;
    return e;
  }
};

// Long enough for several units of every kernel.
struct LongCall : Call {
  static constexpr int64_t kLong = 700;  // keys for two chunks of the backward
  std::vector<float> q2 = numbers(kLong * kH * kD, 5), k2 = numbers(kLong * kHk * kD, 6);
  std::vector<float> v2 = numbers(kLong * kHk * kDv, 7), dout2 = numbers(kLong * kH * kDv, 8);
  std::vector<float> out2 = untouched(kLong * kH * kDv), lse2 = untouched(kLong * kH);
  std::vector<float> dq2 = untouched(kLong * kH * kD), dk2 = untouched(kLong * kHk * kD);
  std::vector<float> dv2 = untouched(kLong * kHk * kDv);

  explicit LongCall(int32_t threads) {
    a.threads = threads;
    a.flags = TW_CAUSAL;
    a.q = tw_tensor_of(q2.data(), TW_F32, 1, kLong, kH, kD);
    a.k = tw_tensor_of(k2.data(), TW_F32, 1, kLong, kHk, kD);
    a.v = tw_tensor_of(v2.data(), TW_F32, 1, kLong, kHk, kDv);
    a.out = tw_tensor_of(out2.data(), TW_F32, 1, kLong, kH, kDv);
    a.lse = tw_tensor_of(lse2.data(), TW_F32, 1, kH, kLong, 1);
    g.dout = tw_tensor_of(dout2.data(), TW_F32, 1, kLong, kH, kDv);
    g.dq = tw_tensor_of(dq2.data(), TW_F32, 1, kLong, kH, kD);
    g.dk = tw_tensor_of(dk2.data(), TW_F32, 1, kLong, kHk, kD);
    g.dv = tw_tensor_of(dv2.data(), TW_F32, 1, kLong, kHk, kDv);
  }
  void run(const tw_exec* exec) {
    EXPECT_EQ(tw_attention_forward(&a, exec), TW_OK) << tw_last_error();
    EXPECT_EQ(tw_attention_backward(&a, &g, exec), TW_OK) << tw_last_error();
  }
  void expect_same_bits(const LongCall& other) const {
    EXPECT_EQ(out2, other.out2);
    EXPECT_EQ(lse2, other.lse2);
    EXPECT_EQ(dq2, other.dq2);
    EXPECT_EQ(dk2, other.dk2);
    EXPECT_EQ(dv2, other.dv2);
  }
};

TEST(HostThreads, APlainLoopIsCorrect) {
  LongCall own(1), looped(4);
  own.run(nullptr);
  HostPool host(false);
  const tw_exec e = host.exec();
  looped.run(&e);
  EXPECT_GT(host.calls, 0);
  looped.expect_same_bits(own);
}

TEST(HostThreads, OrderOfTasksDoesNotMatter) {
  LongCall own(1), reversed(5);
  own.run(nullptr);
  HostPool host(true);
  const tw_exec e = host.exec();
  reversed.run(&e);
  reversed.expect_same_bits(own);
}

TEST(HostThreads, GetTheCountOfThreadsThatWasAsked) {
  LongCall c(3);
  HostPool host(false);
  const tw_exec e = host.exec();
  ASSERT_EQ(tw_attention_forward(&c.a, &e), TW_OK);
  EXPECT_LE(host.tasks, 3 * host.calls);
}

TEST(ManyThreads, SameBitsAtAnyCount) {
  LongCall one(1);
  one.run(nullptr);
  for (int32_t threads : {0, 2, 3, 4, 5, 6, 7, 8}) {
    LongCall many(threads);
    many.run(nullptr);
    many.expect_same_bits(one);
  }
}

TEST(ManyThreads, CallersDoNotMeet) {
  LongCall alone(2);
  alone.run(nullptr);
  LongCall calls[] = {LongCall(2), LongCall(2), LongCall(2), LongCall(2)};
  std::thread callers[std::size(calls)];
  for (size_t i = 0; i < std::size(calls); ++i) callers[i] = std::thread([&call = calls[i]] { call.run(nullptr); });
  for (std::thread& caller : callers) caller.join();
  for (const LongCall& call : calls) call.expect_same_bits(alone);
}

// What docs/api.md asks of a thread that calls.
TEST(ManyThreads, ASmallStackIsEnough) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need a stack of their own";
#endif
  static LongCall c(1);
  pthread_attr_t small;
  ASSERT_EQ(pthread_attr_init(&small), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&small, 64 << 10), 0);
  pthread_t thread;
  const auto call = [](void*) -> void* {
    const bool fails = tw_attention_forward(&c.a, nullptr) || tw_attention_backward(&c.a, &c.g, nullptr);
    return fails || tw_attention_explain(&c.a, &c.g, nullptr, 0) == 0 || tw_info(nullptr, 0) == 0 ? &c : nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &small, call, nullptr), 0);
  void* failed = nullptr;
  ASSERT_EQ(pthread_join(thread, &failed), 0);
  EXPECT_EQ(failed, nullptr);
}

// One plan may be used from many threads; errors belong to the thread that made them.
TEST(ManyThreads, LastErrorIsOfTheThread) {
  Call c;
  c.a.threads = -7;
  ASSERT_EQ(c.forward(), TW_INVALID_ARGUMENT);
  std::thread([] {
    EXPECT_STREQ(tw_last_error(), "");
    Call other;
    other.a.threads = -8;
    EXPECT_EQ(other.forward(), TW_INVALID_ARGUMENT);
    EXPECT_TRUE(last_error_has("threads is -8"));
  }).join();
  EXPECT_TRUE(last_error_has("threads is -7"));
  c.a.threads = 0;
  EXPECT_EQ(c.forward(), TW_OK);
  EXPECT_TRUE(last_error_has("threads is -7")) << "valid until the next failing call";
}

}  // namespace
}  // namespace tilewise::test
