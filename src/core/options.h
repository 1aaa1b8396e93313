// Options of a problem by kind, for kernels that serve some kinds only: a new option belongs to one of these.
#pragma once

#include "core/problem.h"

namespace tilewise {

// Sequences differ in length, or do not lie one after the other.
TILEWISE_INLINE static bool has_lengths(const Problem& p) {
  return p.packed_q || p.packed_k || p.seqused_q || p.seqused_k || p.leftpad_k || p.batch_index_k;
}

// Rows see other keys than all, or those up to their own place (`causal`).
TILEWISE_INLINE static bool has_key_intervals(const Problem& p) {
  return p.window_left != kUnbounded || p.window_right != kUnbounded || p.attention_chunk > 0 || p.key_begin ||
         p.key_end || p.q_positions || p.k_positions;
}

// Scores are more than softmax_scale q.k of a key interval, or probabilities more than their exponentials.
TILEWISE_INLINE static bool has_terms(const Problem& p) {
  return p.softcap > 0 || p.bias || p.alibi_slopes || p.mask || p.dropout.threshold > 0;
}

}  // namespace tilewise
