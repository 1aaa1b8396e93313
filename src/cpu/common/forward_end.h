// The end of a row of a forward pass: normalise, sink, the result so far, and the way to O and LSE in memory.
#pragma once

#include <cmath>

#include "cpu/common/tile.h"
#include "cpu/common/traffic_counter.h"

namespace tilewise::cpu {

// LSE of scores whose exp(s - m) sum up to l; -inf of none.
[[gnu::always_inline]] static inline double lse_of_sum(double m, float l) {
  return m + std::log(static_cast<double>(l));
}

struct RowEnd {
  float factor;  // O = factor * what was summed
  double lse;
};

// l = sum of exp(s - m) over the live keys of a row of query head h; m = -inf, l = 0 if there are none.
[[gnu::always_inline]] static inline RowEnd end_of_row(const Problem& problem, int64_t h, double m, float l) {
  const float sink = sink_of(problem, h);
  if (sink == -kInfinity) return {l == 0 ? 0 : 1 / l, lse_of_sum(m, l)};
  const double top = m > sink ? m : sink, weight = std::exp(m - top), sum = weight * l + std::exp(sink - top);
  return {static_cast<float>(weight / sum), top + std::log(sum)};
}

// The result so far, over other keys, joins that of this call. An empty side leaves the other as it is.
template <class Simd>
void merge_prior(const float* prior_out, double prior_lse, int64_t value_dim, double& lse, float* out) {
  if (prior_lse == -kInfinity) return;
  if (lse == -kInfinity) {
    read_row<Simd>(prior_out, value_dim, 1, out);
    lse = prior_lse;
    return;
  }
  const double top = lse > prior_lse ? lse : prior_lse;
  const double merged = top + std::log(std::exp(lse - top) + std::exp(prior_lse - top));
  const float weight = static_cast<float>(std::exp(lse - merged));
  const float prior_weight = static_cast<float>(std::exp(prior_lse - merged));
  for (int64_t d = 0; d < value_dim; ++d) out[d] = weight * out[d] + prior_weight * prior_out[d];
  lse = merged;
}

// out[value_dim], readable in whole vectors, -> row i of query head h. The scratch row may be changed.
template <class Simd>
void store_row(const Problem& problem, const Sequence& s, int64_t i, int64_t h, double lse, float* out) {
  if (problem.prior_out) {
    const float prior_lse = lse_of(problem.prior_lse, s, i, h);
    merge_prior<Simd>(row_of<float>(problem.prior_out, s, i, h), prior_lse, problem.value_dim, lse, out);
    count_read(problem.value_dim * 4 + 4);
  }
  with_element(problem.out.type, [&](auto element) {
    write_row<Simd>(out, problem.value_dim, 1, row_of<decltype(element)>(problem.out, s, i, h));
  });
  if (problem.lse) lse_of(problem.lse, s, i, h) = static_cast<float>(lse);
  count_written(problem.value_dim * size_of(problem.out.type) + (problem.lse ? 4 : 0));
}

}  // namespace tilewise::cpu
