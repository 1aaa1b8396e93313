// What core/sequence.h promises, for host and device alike. Numbers in lengths and offsets may be wrong on a device,
// where no host has looked at them: they are clamped, so that nothing outside the tensors is reached.
#pragma once

#include "core/numbers.h"
#include "core/sequence.h"

namespace tilewise {

// The tokens of sequence b in a packed tensor of `total` tokens.
TILEWISE_INLINE static void find_slot(const Tensor& offsets, int64_t b, int64_t total, int64_t& first,
                                      int64_t& length) {
  first = clamp(number_at(offsets, b), 0, total);
  length = clamp(number_at(offsets, b + 1), first, total) - first;
}

// What sequence b keeps of these tokens where wrong offsets let sequences overlap: those whose owner a search by
// halves, as in cuda/common/search.cuh, finds it to be. So no token is that of two, and sequences lie one behind the
// other.
TILEWISE_INLINE static void keep_own(const Tensor& offsets, int64_t batch, int64_t b, int64_t& first, int64_t& length) {
  const int64_t last = first + length;
  int64_t begin = first, end = last;
  for (int64_t lo = 0, hi = batch - 1; lo < hi;) {
    const int64_t middle = lo + (hi - lo + 1) / 2, offset = number_at(offsets, middle);
    if (middle <= b) {
      lo = middle, begin = greater(begin, offset);
    } else {
      hi = middle - 1, end = lesser(end, offset);
    }
  }
  first = lesser(begin, last);
  length = greater(0, end - first);
}

TILEWISE_INLINE static int64_t used_length(const Tensor& lengths, int64_t b, int64_t slot) {
  return lengths ? clamp(number_at(lengths, b), 0, slot) : slot;
}

TILEWISE_INLINE static Sequence find_sequence(const Problem& problem, int64_t b) {
  Sequence s;
  s.index = b;
  int64_t row_slot = problem.q.shape[1], key_slot = problem.k.shape[1];
  if (problem.packed_q) {
    find_slot(problem.cu_seqlens_q, b, problem.total_rows, s.first_row, row_slot);
  } else {
    s.q_slot = b;
  }
  if (problem.packed_k) {
    find_slot(problem.cu_seqlens_k, b, problem.total_keys, s.first_key, key_slot);
  } else if (problem.batch_index_k) {
    s.k_slot = greater(0, lesser(number_at(problem.batch_index_k, b), problem.k.shape[0] - 1));
  } else {
    s.k_slot = b;
  }
  s.rows = lesser(used_length(problem.seqused_q, b, row_slot), problem.max_rows);
  s.keys = lesser(used_length(problem.seqused_k, b, key_slot), problem.max_keys);
  if (problem.leftpad_k) s.left_pad = clamp(number_at(problem.leftpad_k, b), 0, s.keys);
  if (problem.mask_tail) s.mask_first_key = s.keys - problem.mask.shape[3];
  return s;
}

TILEWISE_INLINE static int64_t find_row_position(const Problem& problem, const Sequence& sequence, int64_t i) {
  if (problem.q_positions) return number_at(problem.q_positions, sequence.q_slot, sequence.first_row + i);
  return problem.top_left ? i : i + sequence.keys - sequence.rows;
}

TILEWISE_INLINE static int64_t find_key_position(const Problem& problem, const Sequence& sequence, int64_t j) {
  if (!problem.k_positions) return j;
  return number_at(problem.k_positions, sequence.k_slot, sequence.first_key + j);
}

}  // namespace tilewise
