// A workspace is sized and laid out by the same code, and its units of work are drawn from one counter.
#pragma once

#include <atomic>

#include "core/numbers.h"

namespace tilewise::cpu {

// With base null it only counts.
struct Carver {
  char* base;
  int64_t used = 0;

  template <class T>
  [[gnu::always_inline]] T* take(int64_t count) {
    T* place = base ? reinterpret_cast<T*>(base + used) : nullptr;
    used += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
    return place;
  }
};

// Workers draw the next index, so a unit starts only after all earlier ones have started.
struct UnitCounter {
  std::atomic<int64_t> next;
  int64_t total;

  [[gnu::always_inline]] bool draw(int64_t& unit) {
    unit = next.fetch_add(1, std::memory_order_relaxed);
    return unit < total;
  }
};

// order[0..count) = indices of cost[0..count), longest first: 64 classes of cost, stable. Short units at the end leave
// no worker waiting for one long unit.
template <class Simd>
void order_longest_first(const int64_t* cost, int64_t count, int64_t* order) {
  int64_t most = 1, place[65] = {};
  for (int64_t i = 0; i < count; ++i) most = greater(most, cost[i]);
  const auto bucket = [&](int64_t i) { return 63 - static_cast<int64_t>(63.0 * cost[i] / most); };
  for (int64_t i = 0; i < count; ++i) ++place[bucket(i) + 1];
  for (int i = 1; i < 65; ++i) place[i] += place[i - 1];
  for (int64_t i = 0; i < count; ++i) order[place[bucket(i)]++] = i;
}

}  // namespace tilewise::cpu
