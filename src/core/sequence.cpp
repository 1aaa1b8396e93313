#include "core/sequence.h"

#include <algorithm>

namespace tilewise {
namespace {

int64_t used(const Tensor& lengths, int64_t b, int64_t slot) {
  return lengths ? std::clamp<int64_t>(number_at(lengths, b), 0, slot) : slot;
}

}  // namespace

Sequence sequence_of(const Problem& problem, int64_t b) {
  Sequence s;
  s.index = b;
  int64_t row_slot = problem.q.shape[1], key_slot = problem.k.shape[1];
  if (problem.packed_q) {
    s.first_row = number_at(problem.cu_seqlens_q, b);
    row_slot = number_at(problem.cu_seqlens_q, b + 1) - s.first_row;
  } else {
    s.q_slot = b;
  }
  if (problem.packed_k) {
    s.first_key = number_at(problem.cu_seqlens_k, b);
    key_slot = number_at(problem.cu_seqlens_k, b + 1) - s.first_key;
  } else {
    s.k_slot = problem.batch_index_k ? number_at(problem.batch_index_k, b) : b;
  }
  s.rows = used(problem.seqused_q, b, row_slot);
  s.keys = used(problem.seqused_k, b, key_slot);
  if (problem.leftpad_k) s.left_pad = std::clamp<int64_t>(number_at(problem.leftpad_k, b), 0, s.keys);
  if (problem.mask_tail) s.mask_first_key = s.keys - problem.mask.shape[3];
  return s;
}

int64_t row_position(const Problem& problem, const Sequence& sequence, int64_t i) {
  if (problem.q_positions) return number_at(problem.q_positions, sequence.q_slot, sequence.first_row + i);
  return problem.top_left ? i : i + sequence.keys - sequence.rows;
}

int64_t key_position(const Problem& problem, const Sequence& sequence, int64_t j) {
  if (!problem.k_positions) return j;
  return number_at(problem.k_positions, sequence.k_slot, sequence.first_key + j);
}

}  // namespace tilewise
