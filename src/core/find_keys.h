// What core/mask.h promises, for host and device alike.
#pragma once

#include "core/find_sequence.h"
#include "core/mask.h"

namespace tilewise {

TILEWISE_INLINE static int64_t floor_to(int64_t x, int64_t step) {
  const int64_t rest = x % step;
  return x - (rest < 0 ? rest + step : rest);
}

TILEWISE_INLINE static int64_t saturating_add(int64_t a, int64_t b) {
  if (b > 0) return a > INT64_MAX - b ? INT64_MAX : a + b;
  return a < INT64_MIN - b ? INT64_MIN : a + b;
}

// The first key at a position >= p: positions do not descend.
TILEWISE_INLINE static int64_t first_key_from(const Problem& problem, const Sequence& sequence, int64_t p) {
  if (!problem.k_positions) return p;
  int64_t lo = 0, hi = sequence.keys;
  while (lo < hi) {
    const int64_t middle = lo + (hi - lo) / 2;
    if (find_key_position(problem, sequence, middle) < p) {
      lo = middle + 1;
    } else {
      hi = middle;
    }
  }
  return lo;
}

TILEWISE_INLINE static KeyRange find_live_keys(const Problem& problem, const Sequence& sequence, int64_t h, int64_t i) {
  if (i >= sequence.rows) return {};
  KeyRange live{sequence.left_pad, sequence.keys};
  const int64_t p = find_row_position(problem, sequence, i);
  int64_t lo = INT64_MIN, hi = INT64_MAX;  // positions lo <= p < hi
  if (problem.causal) hi = p + 1;
  if (problem.window_left != kUnbounded) lo = saturating_add(p, -problem.window_left);
  if (problem.window_right != kUnbounded) hi = lesser(hi, saturating_add(p + 1, problem.window_right));
  if (problem.attention_chunk > 0) lo = greater(lo, floor_to(p, problem.attention_chunk));
  if (lo != INT64_MIN) live.lo = greater(live.lo, first_key_from(problem, sequence, lo));
  if (hi != INT64_MAX) live.hi = lesser(live.hi, first_key_from(problem, sequence, hi));
  const int64_t row = sequence.first_row + i;
  if (problem.key_begin) live.lo = greater(live.lo, number_at(problem.key_begin, sequence.q_slot, h, row));
  if (problem.key_end) live.hi = lesser(live.hi, number_at(problem.key_end, sequence.q_slot, h, row));
  return live.empty() ? KeyRange{} : live;
}

}  // namespace tilewise
