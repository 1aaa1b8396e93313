// The threads of a call: the library's own, or the host's.
#pragma once

#include <cstdint>

#include "tilewise/tilewise.h"

namespace tilewise {

using Task = void (*)(void* context, int64_t i);

// Runs task(context, i) once for each 0 <= i < count, in any order, together or one after another; returns after the
// last. Tasks draw their work from a counter; a task may wait for one that has started, never for one that has not,
// so a plain loop is correct.
struct Parallel {
  void* pool = nullptr;
  void (*parallel_for)(void* pool, int64_t count, Task task, void* context) = nullptr;

  [[gnu::always_inline]] void operator()(int64_t count, Task task, void* context) const {
    parallel_for(pool, count, task, context);
  }
};

// The library's own threads, started at first use and shared by all callers; they serve several calls at once and
// survive a fork (the child starts its own).
Parallel own_threads();

inline constexpr int kMaxWorkers = 1024;  // tasks at once, whatever a caller asks for

// Cores this process may use: affinity mask and cgroup limit.
int available_cores();

}  // namespace tilewise
