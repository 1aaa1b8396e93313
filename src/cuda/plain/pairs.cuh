// One pair of a backward pass: P = exp(S - LSE), dS = P (Z dP - delta + dLSE), Z what dropout multiplies by.
#pragma once

#include "cuda/plain/rows.cuh"

namespace tilewise::cuda::plain {

// What a row brings to all its keys.
struct RowGradient {
  float lse, shift;  // shift = dLSE - delta

  TILEWISE_DEVICE bool is_live() const { return lse != -INFINITY; }
};

TILEWISE_DEVICE RowGradient row_gradient(const Problem& p, const Tensor& shifts, const Sequence& s, int64_t h,
                                         int64_t i) {
  return {read_element(p.lse, lse_offset(p.lse, s, i, h)), read_element(shifts, lse_offset(shifts, s, i, h))};
}

struct PairGradient {
  float p;    // with dropout
  float ds;   // of the final score
  float dqk;  // of q.k
};

// Of a pair whose products q.k and dO.v are given; `key` is dropout_key(p).
TILEWISE_DEVICE PairGradient pair_gradient(const Problem& p, uint64_t key, const Sequence& s, const ScoreRow& row,
                                           RowGradient g, int64_t j, float qk, float dp) {
  const Capped score = score_of(p, s, row, j, qk);
  const float probability = expf(score.value - g.lse), z = dropout_of(p, key, s, row, j);
  const float ds = probability * (z * dp + g.shift);
  return {probability * z, ds, ds * score.slope * p.softmax_scale};
}

}  // namespace tilewise::cuda::plain
