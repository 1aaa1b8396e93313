#include <algorithm>

#include "core/problem.h"

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

}  // namespace tilewise
