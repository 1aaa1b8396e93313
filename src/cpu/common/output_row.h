// The last step of a forward row: its own result over this call's keys, merged with the prior one, into out and lse.
#pragma once

#include <cmath>

#include "cpu/common/score_row.h"

namespace tilewise::cpu {

// lse = log(exp(m) + exp of the others), given the sum l of exp(s - m).
[[gnu::always_inline]] static inline float lse_of(float m, float l) {
  return l == 0 ? -kInfinity : static_cast<float>(static_cast<double>(m) + std::log(static_cast<double>(l)));
}

// own[0..Dv) = weight * own + prior_weight * prior and lse of both; an empty side leaves the other's bits.
template <class Simd>
float merge_prior(const Problem& problem, const Sequence& s, int64_t h, int64_t i, float lse, float* own) {
  const float prior_lse = lse_of(problem.prior_lse, s, i, h);
  if (prior_lse == -kInfinity) return lse;
  const float* prior = row_of<float>(problem.prior_out, s, i, h);
  const bool empty = lse == -kInfinity;
  const double top = lse > prior_lse ? lse : prior_lse;
  const double merged = top + std::log(std::exp(lse - top) + std::exp(prior_lse - top));
  const auto weight = static_cast<float>(std::exp(lse - merged));
  const auto prior_weight = static_cast<float>(std::exp(prior_lse - merged));
  for (int64_t d = 0; d < problem.value_dim; ++d) own[d] = empty ? prior[d] : weight * own[d] + prior_weight * prior[d];
  return empty ? prior_lse : static_cast<float>(merged);
}

// own: a scratch row, readable in whole vectors.
template <class Simd>
void store_output_row(const Problem& problem, const Sequence& s, int64_t h, int64_t i, float lse, float* own) {
  if (problem.prior_lse) lse = merge_prior<Simd>(problem, s, h, i, lse, own);
  if (problem.lse) lse_of(problem.lse, s, i, h) = lse;
  with_element(problem.out.type, [&](auto element) {
    write_row<Simd>(own, problem.value_dim, 1, row_of<decltype(element)>(problem.out, s, i, h));
  });
  count_written(problem.value_dim * size_of(problem.out.type) + (problem.lse ? 4 : 0));
  if (problem.prior_lse) count_read(problem.value_dim * 4 + 4);
}

}  // namespace tilewise::cpu
