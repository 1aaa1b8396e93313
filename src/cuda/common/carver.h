// The parts of a workspace. Host code.
#pragma once

#include "core/numbers.h"

namespace tilewise::cuda {

// Hands them out one after the other, aligned as the workspace itself is; with base = null it counts.
struct Carver {
  char* base;
  int64_t used = 0;

  template <class T>
  T* take(int64_t count) {
    constexpr int64_t kAlignment = 256;
    T* const part = base ? reinterpret_cast<T*>(base + used) : nullptr;
    used += round_up(count * static_cast<int64_t>(sizeof(T)), kAlignment);
    return part;
  }
};

}  // namespace tilewise::cuda
