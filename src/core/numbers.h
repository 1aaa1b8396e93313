// Whole-number helpers.
#pragma once

#include <cstdint>

#include "core/inline.h"

namespace tilewise {

TILEWISE_INLINE static int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }
TILEWISE_INLINE static int64_t greater(int64_t a, int64_t b) { return a > b ? a : b; }
TILEWISE_INLINE static int64_t clamp(int64_t x, int64_t lo, int64_t hi) { return lesser(greater(x, lo), hi); }
TILEWISE_INLINE static int64_t round_down(int64_t x, int64_t step) { return x / step * step; }
TILEWISE_INLINE static int64_t round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }
TILEWISE_INLINE static int64_t ceil_div(int64_t x, int64_t step) { return x / step + (x % step > 0 ? 1 : 0); }

}  // namespace tilewise
