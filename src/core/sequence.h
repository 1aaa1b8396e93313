// Sequence: where the rows and keys of one sequence of a call lie, in memory and among positions.
#pragma once

#include "core/problem.h"

namespace tilewise {

// One sequence of the call: where its rows and keys lie and how many are in use. Needs the data of lengths and offsets.
struct Sequence {
  int64_t index = 0;                            // b
  int64_t q_slot = 0, first_row = 0, rows = 0;  // row i < rows lies at (q_slot, first_row + i); rows = Sq
  int64_t k_slot = 0, first_key = 0, keys = 0;  // key j < keys lies at (k_slot, first_key + j); keys = Sk
  int64_t left_pad = 0;                         // keys before it are dead
  int64_t mask_first_key = 0;                   // key j is column j - mask_first_key of `mask`; earlier keys are live
};

Sequence sequence_of(const Problem& problem, int64_t b);

// Where row i of q, out and their gradients lies, and key j of k, v and theirs (h: head of that tensor), in elements.
// Kernels find rows and keys by these alone, so that a new way to store them changes no kernel.
TILEWISE_INLINE static int64_t row_offset(const Tensor& t, const Sequence& s, int64_t i, int64_t h) {
  return t.offset(s.q_slot, s.first_row + i, h);
}
TILEWISE_INLINE static int64_t key_offset(const Tensor& t, const Sequence& s, int64_t j, int64_t h) {
  return t.offset(s.k_slot, s.first_key + j, h);
}
// The same of lse and its gradient, and of the lse of the result so far.
TILEWISE_INLINE static int64_t lse_offset(const Tensor& t, const Sequence& s, int64_t i, int64_t h) {
  return t.offset(s.q_slot, h, s.first_row + i);
}

// Position of row i and of key j of a sequence: what causal, window, chunk, ALiBi and dropout compare.
int64_t row_position(const Problem& problem, const Sequence& sequence, int64_t i);
int64_t key_position(const Problem& problem, const Sequence& sequence, int64_t j);

}  // namespace tilewise
