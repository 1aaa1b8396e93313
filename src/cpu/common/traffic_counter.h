// What crosses between slow memory (tensors, S, P, sums kept in the workspace) and a worker's blocks. Counted in the
// counting build; elsewhere these calls are nothing.
#pragma once

#include <cstdint>

namespace tilewise {

#ifdef TILEWISE_COUNT_TRAFFIC
inline constexpr bool kCountTraffic = true;
#else
inline constexpr bool kCountTraffic = false;
#endif

void add_to_counted_traffic(int64_t bytes_read, int64_t bytes_written);  // any thread

namespace cpu {

[[gnu::always_inline]] static inline void count_read(int64_t bytes) {
  if constexpr (kCountTraffic) add_to_counted_traffic(bytes, 0);
}
[[gnu::always_inline]] static inline void count_written(int64_t bytes) {
  if constexpr (kCountTraffic) add_to_counted_traffic(0, bytes);
}

}  // namespace cpu
}  // namespace tilewise
