// One row of one head: its scores, as the contract orders their steps, and their derivatives.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/mask.h"
#include "core/numbers.h"
#include "core/philox.h"
#include "cpu/common/element_values.h"

namespace tilewise::cpu::reference {

template <class Real>
inline constexpr Real kInfinity = std::numeric_limits<Real>::infinity();

// The oracle sums in four lanes, since additions one after the other would wait for each other; the yardstick sums as
// plain loops do, so that it errs as they do.
template <class Real>
Real dot(const Real* a, const Real* b, int64_t count) {
  constexpr int kLanes = sizeof(Real) == sizeof(double) ? 4 : 1;
  Real sum[kLanes] = {}, total = 0;
  const int64_t whole = round_down(count, kLanes);
  for (int64_t i = 0; i < whole; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) sum[lane] += a[i + lane] * b[i + lane];
  for (const Real x : sum) total += x;
  for (int64_t i = whole; i < count; ++i) total += a[i] * b[i];
  return total;
}

// to[0..count) += factor * x
template <class Real>
void add_scaled(Real factor, const Real* x, int64_t count, Real* to) {
  for (int64_t i = 0; i < count; ++i) to[i] += factor * x[i];
}

template <class Real>
struct Score {
  Real value;
  Real slope;  // d value / d (softmax_scale * q.k): 1 without softcap
};

// What does not depend on the key. `stored` is the type in which scores and probabilities would lie in memory.
template <class Real>
struct Row {
  const Problem& problem;
  const Sequence& sequence;
  int64_t h, i;
  Type stored;
  int64_t position;
  KeyRange live;  // keys outside it are dead; those inside may still be: see uses()
  Real alibi_slope = 0;

  Row(const Problem& problem, const Sequence& sequence, int64_t h, int64_t i, Type stored)
      : problem(problem),
        sequence(sequence),
        h(h),
        i(i),
        stored(stored),
        position(row_position(problem, sequence, i)),
        live(live_keys(problem, sequence, h, i)) {
    if (problem.alibi_slopes) {
      alibi_slope = read_value<Real>(problem.alibi_slopes, problem.alibi_slopes.offset(sequence.index, h, 0));
    }
  }

  Real bias(int64_t j) const {
    return problem.bias ? read_value<Real>(problem.bias, problem.bias.offset(sequence.index, h, i, j)) : Real{0};
  }

  bool masked(int64_t j) const {
    const int64_t column = j - sequence.mask_first_key;
    return problem.mask && column >= 0 && !problem.mask.data[problem.mask.offset(sequence.index, h, i, column)];
  }

  // A key that `mask` or an infinite bias takes from the row is not looked at, so what it holds cannot reach the row.
  bool uses(int64_t j) const { return !masked(j) && bias(j) != -kInfinity<Real>; }

  Score<Real> score(const Real* q, const Real* k, int64_t j) const {
    Score<Real> s{keep(static_cast<Real>(problem.softmax_scale) * dot(q, k, problem.head_dim)), 1};
    if (problem.softcap > 0) {
      const Real cap = problem.softcap, t = std::tanh(s.value / cap);
      s = {cap * t, 1 - t * t};
    }
    s.value += bias(j);
    if (alibi_slope != 0) s.value -= alibi_slope * std::abs(Real(position - key_position(problem, sequence, j)));
    s.value = keep(s.value);
    return s;
  }

  // What dropout multiplies the probability by.
  Real dropout_factor(int64_t j) const {
    const uint32_t threshold = problem.dropout.threshold;
    if (threshold == 0) return 1;
    const int64_t key = key_position(problem, sequence, j);
    const uint32_t bits = dropout_bits(problem.dropout.key, key, position, h, sequence.index);
    return bits < threshold ? Real{0} : Real{65536} / Real(65536 - threshold);
  }

  Real keep(Real x) const { return round_to(stored, x); }
};

}  // namespace tilewise::cpu::reference
