#include "core/mask.h"

#include <algorithm>

namespace tilewise {
namespace {

int64_t floor_to(int64_t x, int64_t step) {
  const int64_t rest = x % step;
  return x - (rest < 0 ? rest + step : rest);
}

int64_t saturating_add(int64_t a, int64_t b) {
  int64_t sum;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return b > 0 ? INT64_MAX : INT64_MIN;
}

// The first key at a position >= p: positions do not descend.
int64_t first_key_from(const Problem& problem, const Sequence& sequence, int64_t p) {
  if (!problem.k_positions) return p;
  int64_t lo = 0, hi = sequence.keys;
  while (lo < hi) {
    const int64_t middle = lo + (hi - lo) / 2;
    if (key_position(problem, sequence, middle) < p) {
      lo = middle + 1;
    } else {
      hi = middle;
    }
  }
  return lo;
}

}  // namespace

KeyRange live_keys(const Problem& problem, const Sequence& sequence, int64_t h, int64_t i) {
  if (i >= sequence.rows) return {};
  KeyRange live{sequence.left_pad, sequence.keys};
  const int64_t p = row_position(problem, sequence, i);
  int64_t lo = INT64_MIN, hi = INT64_MAX;  // positions lo <= p < hi
  if (problem.causal) hi = p + 1;
  if (problem.window_left != kUnbounded) lo = saturating_add(p, -problem.window_left);
  if (problem.window_right != kUnbounded) hi = std::min(hi, saturating_add(p + 1, problem.window_right));
  if (problem.attention_chunk > 0) lo = std::max(lo, floor_to(p, problem.attention_chunk));
  if (lo != INT64_MIN) live.lo = std::max(live.lo, first_key_from(problem, sequence, lo));
  if (hi != INT64_MAX) live.hi = std::min(live.hi, first_key_from(problem, sequence, hi));
  const int64_t row = sequence.first_row + i;
  if (problem.key_begin) {
    live.lo = std::max(live.lo, number_at(problem.key_begin, sequence.q_slot, h, row));
  }
  if (problem.key_end) {
    live.hi = std::min(live.hi, number_at(problem.key_end, sequence.q_slot, h, row));
  }
  return live.empty() ? KeyRange{} : live;
}

}  // namespace tilewise
