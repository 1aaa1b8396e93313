// Decoding as an inference engine does it: planned once for the largest call, then run for every token with the
// engine's own workspace and threads. Between plan and end nothing is allocated.
#include <array>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <mutex>
#include <thread>
#include <tilewise/tilewise.hpp>
#include <vector>

namespace {

// The engine's threads: one call at a time.
class Threads {
 public:
  explicit Threads(int workers) {
    for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Threads() {
    {
      const std::lock_guard guard(lock_);
      stop_ = true;
    }
    more_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Threads(const Threads&) = delete;

  tw_thread_pool pool() {
    tw_thread_pool pool;
    TW_INIT(pool);
    pool.context = this;
    pool.parallel_for = [](void* context, std::int64_t count, Task* task, void* task_context) {
      static_cast<Threads*>(context)->run(count, task, task_context);
    };
    return pool;
  }

 private:
  using Task = void(void* context, std::int64_t i);

  void run(std::int64_t count, Task* task, void* task_context) {
    std::unique_lock lock(lock_);
    task_ = task, task_context_ = task_context;
    next_ = 0, count_ = unfinished_ = count;
    more_.notify_all();
    draw_tasks(lock);  // the caller works too
    all_done_.wait(lock, [this] { return unfinished_ == 0; });
  }

  void work() {
    std::unique_lock lock(lock_);
    while (!stop_) {
      draw_tasks(lock);
      more_.wait(lock, [this] { return stop_ || next_ < count_; });
    }
  }

  // Until none is left. The lock is held on entry and on return.
  void draw_tasks(std::unique_lock<std::mutex>& lock) {
    while (next_ < count_) {
      const std::int64_t i = next_++;
      lock.unlock();
      task_(task_context_, i);
      lock.lock();
      if (--unfinished_ == 0) all_done_.notify_one();
    }
  }

  std::mutex lock_;
  std::condition_variable more_, all_done_;
  Task* task_ = nullptr;
  void* task_context_ = nullptr;
  std::int64_t next_ = 0, count_ = 0, unfinished_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

constexpr int B = 4, kCapacity = 256, H = 8, Hk = 2, D = 64, kWorkers = 2;

int decode() {
  std::vector<float> q(B * H * D), out(q.size()), cache_k(B * kCapacity * Hk * D), cache_v(cache_k.size());
  for (std::size_t i = 0; i < cache_v.size(); ++i) cache_v[i] = float(i / (Hk * D) % kCapacity);  // row j is j
  std::array<std::int32_t, B> lengths = {1, 5, 17, 100};

  const tilewise::Attention attention{.q = {q, B, 1, H, D},
                                      .k = {cache_k, B, kCapacity, Hk, D},
                                      .v = {cache_v, B, kCapacity, Hk, D},
                                      .out = {out, B, 1, H, D},
                                      .threads = kWorkers + 1,
                                      .seqused_k = {lengths, B}};
  tilewise::AttentionPlan plan;
  tilewise::plan_forward(attention, plan).or_throw();
  std::printf("%s, %zu bytes of workspace\n", plan.kernel(), std::size_t{plan.workspace_bytes});

  Threads threads(kWorkers);
  const tw_thread_pool pool = threads.pool();
  std::vector<std::byte> memory(plan.workspace_bytes + 255);
  const tilewise::Exec exec{.workspace = tilewise::aligned(memory), .pool = &pool};
  for (int step = 0; step < 100; ++step) {
    for (std::int32_t& length : lengths) ++length;  // here an engine writes q and the cache's new rows
    tilewise::run(plan, attention, exec).or_throw();
    for (std::size_t i = 0; i < B; ++i) {  // all scores are equal: the mean of rows 0 to length - 1
      if (std::abs(out[i * H * D] - float(lengths[i] - 1) / 2) > 1e-3f) return 1;
    }
  }
  std::printf("100 tokens for each of %d sequences\n", B);
  return 0;
}

}  // namespace

int main() {
  try {
    return decode();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
