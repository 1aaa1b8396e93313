#include "core/threads.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>

#include "core/device.h"

namespace tilewise {
namespace {

constexpr int kFewThreads = 8;  // where there are fewer cores: limits may grow, and tests want threads that meet
constexpr int kSpins = 2000;    // some 20 to 80 us: the gap between two calls of one loop over layers

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// One parallel_for, on the stack of its caller; in the queue as long as it has tasks that nobody has drawn.
struct Job {
  Task task;
  void* context;
  int64_t count;
  std::atomic<int64_t> next{0};
  std::atomic<int> helpers{0};  // threads of the pool at work on it; changes under the lock
  bool queued = true;           // under the lock
  Job* after = nullptr;         // under the lock

  void draw() {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) task(context, i);
  }
  bool drained() const { return next.load(std::memory_order_relaxed) >= count; }
};

class Pool {
 public:
  void run(int64_t count, Task task, void* context) {
    Job job{task, context, count};
    int64_t helpers;
    {
      std::unique_lock lock(mutex_);
      start_threads(count - 1);
      helpers = std::min(count - 1, threads_);
      enqueue(job);
    }
    for (int64_t i = 0; i < helpers; ++i) wake_.notify_one();
    job.draw();
    for (int spin = 0; spin < kSpins && job.helpers.load(std::memory_order_acquire) > 0; ++spin) pause();
    std::unique_lock lock(mutex_);
    remove(job);
    done_.wait(lock, [&] { return job.helpers.load(std::memory_order_relaxed) == 0; });
  }

 private:
  static void* thread_main(void* pool) {
    static_cast<Pool*>(pool)->serve();
    return nullptr;
  }

  [[noreturn]] void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      Job* job = first_with_work();
      if (!job) {
        wait_for_job(lock);
        continue;
      }
      job->helpers.fetch_add(1, std::memory_order_relaxed);
      lock.unlock();
      job->draw();
      lock.lock();
      if (job->queued) remove(*job);
      // After the last helper has left, the job may be gone.
      if (job->helpers.fetch_sub(1, std::memory_order_release) == 1) done_.notify_all();
    }
  }

  void wait_for_job(std::unique_lock<std::mutex>& lock) {
    const uint32_t seen = enqueued_.load(std::memory_order_relaxed);
    lock.unlock();
    for (int spin = 0; spin < kSpins && enqueued_.load(std::memory_order_relaxed) == seen; ++spin) pause();
    lock.lock();
    wake_.wait(lock, [&] { return enqueued_.load(std::memory_order_relaxed) != seen; });
  }

  // Threads beyond the cores would stay for the life of the process and only take turns. One that cannot be started is
  // not an error: the caller works through the tasks itself.
  void start_threads(int64_t wanted) {
    sigset_t all, before;
    if (threads_ >= wanted) return;
    wanted = std::min<int64_t>(wanted, std::max(available_cores(), kFewThreads));
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);  // signals belong to the threads of the host
    for (pthread_t thread; threads_ < wanted; ++threads_) {
      if (pthread_create(&thread, nullptr, thread_main, this) != 0) break;
      pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void enqueue(Job& job) {
    Job** end = &first_;
    while (*end) end = &(*end)->after;
    *end = &job;
    enqueued_.fetch_add(1, std::memory_order_relaxed);
  }

  void remove(Job& job) {
    if (!job.queued) return;
    Job** at = &first_;
    while (*at != &job) at = &(*at)->after;
    *at = job.after;
    job.queued = false;
  }

  Job* first_with_work() {
    for (Job* job = first_; job; job = job->after) {
      if (!job->drained()) return job;
    }
    return nullptr;
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Job* first_ = nullptr;
  std::atomic<uint32_t> enqueued_{0};
  int64_t threads_ = 0;
};

// Never destroyed: its threads may outlive main.
alignas(Pool) char pool_memory[sizeof(Pool)];

Pool* pool() { return std::launder(reinterpret_cast<Pool*>(pool_memory)); }

void make_pool() { new (pool_memory) Pool; }

// What is read once is read before a fork: half-way through, the child would wait for a thread that it does not have.
void finish_first_use() {
  this_cpu();
  available_cores();
}

// A forked child has none of the threads and starts with a new pool. Made on loading, since first use may be cut in two
// by a fork, too.
[[gnu::constructor(101)]] void start() {
  make_pool();
  pthread_atfork(finish_first_use, nullptr, make_pool);
}

void run_on_pool(void* pool, int64_t count, Task task, void* context) {
  if (count > 1) {
    static_cast<Pool*>(pool)->run(count, task, context);
  } else if (count == 1) {
    task(context, 0);
  }
}

}  // namespace

Parallel own_threads() { return {pool(), run_on_pool}; }

}  // namespace tilewise
