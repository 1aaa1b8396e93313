// Whole-number helpers. Always inlined, like everything small here: an inline function compiled for one instruction set
// must never be the copy that the linker keeps for all.
#pragma once

#include <cstdint>

namespace tilewise {

[[gnu::always_inline]] static inline int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }
[[gnu::always_inline]] static inline int64_t greater(int64_t a, int64_t b) { return a > b ? a : b; }
[[gnu::always_inline]] static inline int64_t clamp(int64_t x, int64_t lo, int64_t hi) {
  return lesser(greater(x, lo), hi);
}
[[gnu::always_inline]] static inline int64_t round_down(int64_t x, int64_t step) { return x / step * step; }
[[gnu::always_inline]] static inline int64_t round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }
[[gnu::always_inline]] static inline int64_t ceil_div(int64_t x, int64_t step) {
  return x / step + (x % step > 0 ? 1 : 0);
}

}  // namespace tilewise
