// Scores of pairs, as the contract orders their steps: scale, softcap, bias, ALiBi; what `mask` and `bias` take away;
// dropout. Each step is a function, absent ones cost a branch that all threads take alike.
#pragma once

#include "core/find_sequence.h"
#include "cuda/common/dropout.cuh"
#include "cuda/common/element.cuh"

namespace tilewise::cuda {

// A row of a query head, and what its scores have that does not depend on the key.
struct ScoreRow {
  int64_t h, i;
  int64_t position;
  float alibi_slope;
};

TILEWISE_DEVICE float alibi_slope_of(const Problem& p, const Sequence& s, int64_t h) {
  return p.alibi_slopes ? read_element(p.alibi_slopes, p.alibi_slopes.offset(s.index, h, 0)) : 0;
}

TILEWISE_DEVICE ScoreRow score_row(const Problem& p, const Sequence& s, int64_t h, int64_t i) {
  return {h, i, find_row_position(p, s, i), alibi_slope_of(p, s, h)};
}

TILEWISE_DEVICE float bias_of(const Problem& p, const Sequence& s, int64_t h, int64_t i, int64_t j) {
  return p.bias ? read_element(p.bias, p.bias.offset(s.index, h, i, j)) : 0;
}

TILEWISE_DEVICE bool is_masked(const Problem& p, const Sequence& s, int64_t h, int64_t i, int64_t j) {
  const int64_t column = j - s.mask_first_key;
  return p.mask && column >= 0 && !p.mask.data[p.mask.offset(s.index, h, i, column)];
}

// Whether `mask` and `bias` leave a live key to the row: neither is masked out, nor has a bias of -inf.
TILEWISE_DEVICE bool is_used(const Problem& p, const Sequence& s, const ScoreRow& row, int64_t j) {
  return !is_masked(p, s, row.h, row.i, j) && bias_of(p, s, row.h, row.i, j) != -INFINITY;
}

// softcap * tanh(x / softcap), and what its derivative multiplies gradients by.
struct Capped {
  float value, slope;
};

TILEWISE_DEVICE Capped cap_score(const Problem& p, float x) {
  if (p.softcap == 0) return {x, 1};
  const float t = tanhf(x / p.softcap);
  return {p.softcap * t, 1 - t * t};
}

TILEWISE_DEVICE float alibi_of(const Problem& p, const Sequence& s, const ScoreRow& row, int64_t j) {
  if (row.alibi_slope == 0) return 0;
  const int64_t distance = row.position - find_key_position(p, s, j);
  return -row.alibi_slope * static_cast<float>(distance < 0 ? -distance : distance);
}

// The final score, in natural units, of a pair whose q.k is given. `slope` is its derivative by softmax_scale * q.k.
TILEWISE_DEVICE Capped score_of(const Problem& p, const Sequence& s, const ScoreRow& row, int64_t j, float qk) {
  Capped score = cap_score(p, p.softmax_scale * qk);
  score.value += bias_of(p, s, row.h, row.i, j);
  score.value += alibi_of(p, s, row, j);
  return score;
}

// What dropout multiplies the probability of a pair by; `key` is dropout_key(p).
TILEWISE_DEVICE float dropout_of(const Problem& p, uint64_t key, const Sequence& s, const ScoreRow& row, int64_t j) {
  if (p.dropout.threshold == 0) return 1;
  return dropout_factor(p, dropout_bits(key, find_key_position(p, s, j), row.position, row.h, s.index));
}

}  // namespace tilewise::cuda
