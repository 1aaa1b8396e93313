#include "binding/host_threads.h"

#include <atomic>
#include <bit>

namespace tilewise::python {
namespace {

using GompParallel = void (*)(void (*body)(void* region), void* region, unsigned threads, unsigned flags);
constexpr unsigned kAsManyAsEver = 0;  // a team of another size would end threads that the host starts again

// One parallel_for: each thread of the team draws tasks until none is left.
struct Region {
  int64_t count;
  void (*task)(void* task_context, int64_t i);
  void* task_context;
  std::atomic<int64_t> next{0};

  static void work(void* region) {
    auto& self = *static_cast<Region*>(region);
    for (int64_t i; (i = self.next.fetch_add(1, std::memory_order_relaxed)) < self.count;)
      self.task(self.task_context, i);
  }
};

void parallel_for(void* context, int64_t count, void (*task)(void* task_context, int64_t i), void* task_context) {
  Region region{count, task, task_context};
  if (count <= 1) return Region::work(&region);
  reinterpret_cast<GompParallel>(context)(Region::work, &region, kAsManyAsEver, 0);
}

}  // namespace

tw_thread_pool threads_of_openmp(uintptr_t openmp) {
  tw_thread_pool pool;
  TW_INIT(pool);
  pool.context = std::bit_cast<void*>(openmp);
  pool.parallel_for = parallel_for;
  return pool;
}

}  // namespace tilewise::python
