// A row of S or P with its keys side by side in memory: what `standard` and `v1` do to it between the products.
//
//   S = softmax_scale Q K^T, softcap, bias, ALiBi, mask      finish_scores
//   P = exp(S - m)                                           exponentials
//   P = exp(S - LSE)                                         recompute_probabilities
//   P Z, with Z = 0 or keep_scale                            each_kept
//   dS = P (Z dP - delta + dLSE)                             score_gradients
//
// A row has room for whole panels; past its keys lie -inf in S and zeros in P and dS.
#pragma once

#include "core/mask.h"
#include "core/philox.h"
#include "cpu/common/matrix.h"
#include "cpu/common/scores.h"

namespace tilewise::cpu {

// Keys [first_key, first_key + count) of row i of query head h.
struct ScoreRow {
  const Problem& problem;
  const Sequence& sequence;
  int64_t h, i;
  KeyRange live;  // of the whole row
  int64_t first_key, count;

  [[gnu::always_inline]] int64_t begin() const { return clamp(live.lo - first_key, 0, count); }
  [[gnu::always_inline]] int64_t end() const { return greater(begin(), clamp(live.hi - first_key, 0, count)); }
};

template <class Simd>
int64_t padded_count(const ScoreRow& row) {
  return round_up(row.count, Simd::kTileCols);
}

// x[j] = step(x[j]) for begin <= j < end, vector by vector; step may be called with any number in the lanes past them.
template <class Simd, class Step>
void each_vector(float* x, int64_t begin, int64_t end, Step step) {
  int64_t j = begin;
  for (; j + Simd::kLanes <= end; j += Simd::kLanes) Simd::store(x + j, step(j, Simd::load(x + j)));
  if (j < end) Simd::store_first(x + j, step(j, Simd::load_first(x + j, end - j)), end - j);
}

template <class Simd, class Combine>
float across_lanes(typename Simd::Vec x, Combine combine) {
  float lane[Simd::kLanes];
  Simd::store(lane, x);
  float result = lane[0];
  for (int i = 1; i < Simd::kLanes; ++i) result = combine(result, lane[i]);
  return result;
}

// x[j] = step(x[j], element j of a row of t that starts at `offset`), begin <= j < end.
template <class Simd, class Element, class Step>
void with_row_of(const Tensor& t, int64_t offset, int64_t begin, int64_t end, float* x, Step step) {
  const int64_t stride = t.stride[3];
  each_vector<Simd>(x, begin, end, [&](int64_t j, typename Simd::Vec score) {
    const int64_t columns = lesser(Simd::kLanes, end - j);
    const Element* from = element_at<Element>(t, offset + j * stride);
    if (stride == 1) return step(score, columns == Simd::kLanes ? Simd::load(from) : Simd::load_first(from, columns));
    Element gathered[Simd::kLanes] = {};
    for (int64_t c = 0; c < columns; ++c) gathered[c] = from[c * stride];
    return step(score, Simd::load(gathered));
  });
}

// S = softmax_scale * S with softcap, bias, ALiBi and mask. If softcap acts, `slopes` (unless null) gets its
// derivative.
template <class Simd>
void add_score_terms(const ScoreRow& row, float* x, float* slopes) {
  using S = Simd;
  using Vec = typename S::Vec;
  const Problem& problem = row.problem;
  const int64_t b = row.sequence.index, h = row.h, i = row.i, begin = row.begin(), end = row.end();
  const Vec scale = S::set(problem.softmax_scale);
  each_vector<S>(x, begin, end, [&](int64_t, Vec score) { return S::mul(score, scale); });
  if (has_softcap(problem)) {
    const Softcap<S> softcap(problem);
    each_vector<S>(x, begin, end, [&](int64_t, Vec score) { return softcap.of(score); });
    if (slopes) {
      for (int64_t j = 0; j < padded_count<S>(row); j += S::kLanes)
        S::store(slopes + j, softcap.slope_at(S::load(x + j)));
    }
  }
  if (problem.bias) {
    count_read((end - begin) * size_of(problem.bias.type));
    with_element(problem.bias.type, [&](auto element) {
      with_row_of<S, decltype(element)>(problem.bias, problem.bias.offset(b, h, i, row.first_key), begin, end, x,
                                        [](Vec score, Vec bias) { return add_terms<S>(score, bias); });
    });
  }
  if (problem.alibi_slopes) {
    const float slope = *element_at<float>(problem.alibi_slopes, problem.alibi_slopes.offset(b, h, 0));
    const int64_t p = row_position(problem, row.sequence, i);
    for (int64_t j = begin; j < end; ++j) {
      const int64_t distance = p - key_position(problem, row.sequence, row.first_key + j);
      x[j] -= slope * static_cast<float>(distance < 0 ? -distance : distance);
    }
  }
  if (problem.mask) {
    const int64_t column = row.first_key - row.sequence.mask_first_key;  // keys before column 0 are live
    const int64_t from = greater(begin, lesser(end, -column));
    count_read(end - from);
    with_row_of<S, Boolean>(
        problem.mask, problem.mask.offset(b, h, i, column), from, end, x,
        [](Vec score, Vec allowed) { return S::select(S::equal(allowed, S::set(0)), S::set(-kInfinity), score); });
  }
}

// Q K^T to the final scores: -inf wherever a key is dead. Returns their maximum, of which NaN is no part.
template <class Simd>
float finish_scores(const ScoreRow& row, float* x, float* slopes) {
  using S = Simd;
  using Vec = typename S::Vec;
  const int64_t begin = row.begin(), end = row.end();
  const bool plain = !has_softcap(row.problem) && !has_added(row.problem);
  if (!plain) add_score_terms<S>(row, x, slopes);
  for (int64_t j = 0; j < begin; ++j) x[j] = -kInfinity;
  for (int64_t j = end; j < padded_count<S>(row); ++j) x[j] = -kInfinity;
  const Vec scale = S::set(plain ? row.problem.softmax_scale : 1);
  Vec top = S::set(-kInfinity);
  int64_t j = begin;
  for (; j + S::kLanes <= end; j += S::kLanes) {
    const Vec score = S::mul(S::load(x + j), scale);
    top = S::max(score, top);
    S::store(x + j, score);
  }
  float most = across_lanes<S>(top, [](float a, float b) { return a > b ? a : b; });
  for (; j < end; ++j) {
    if (plain) x[j] *= row.problem.softmax_scale;
    if (x[j] > most) most = x[j];
  }
  return most;
}

// P = exp(S - m), exactly 0 where S is -inf; returns the sum. m is finite. S > m only by rounding.
template <class Simd>
float exponentials(const ScoreRow& row, float m, const float* scores, float* probs) {
  using S = Simd;
  using Vec = typename S::Vec;
  Vec sum = S::set(0);
  for (int64_t j = 0; j < padded_count<S>(row); j += S::kLanes) {
    const Vec score = S::load(scores + j);
    const Vec power = S::mul(S::sub(score, S::set(m)), S::set(kLog2e));
    const Vec finite = exp2<S>(S::min(S::set(126), power));
    const Vec p = S::keep_unless(S::equal(score, S::set(-kInfinity)), finite);
    sum = S::add(sum, p);
    S::store(probs + j, p);
  }
  return across_lanes<S>(sum, [](float a, float b) { return a + b; });
}

// Q K^T to P = exp(S - LSE). LSE = -inf: no key is live, P = 0.
template <class Simd>
void recompute_probabilities(const ScoreRow& row, float lse, float* x, float* slopes) {
  if (lse != -kInfinity) {
    finish_scores<Simd>(row, x, slopes);
    exponentials<Simd>(row, lse, x, x);
  } else {
    zero<Simd>(x, padded_count<Simd>(row));
    if (slopes) zero<Simd>(slopes, padded_count<Simd>(row));
  }
}

template <class Simd>
void scale_row(float factor, int64_t count, float* x) {
  for (int64_t j = 0; j < count; j += Simd::kLanes) Simd::store(x + j, Simd::mul(Simd::load(x + j), Simd::set(factor)));
}

// visit(j, z): dropout's factor of each pair of the row that may be live.
template <class Simd, class Visit>
void each_kept(const ScoreRow& row, Visit visit) {
  const Dropout& dropout = row.problem.dropout;
  const auto p = static_cast<uint32_t>(row_position(row.problem, row.sequence, row.i));
  PhiloxBlock random{};
  for (int64_t j = row.begin(), group = -1; j < row.end(); ++j) {
    const int64_t position = key_position(row.problem, row.sequence, row.first_key + j);
    if (dropout_group(position) != group) {
      group = dropout_group(position);
      random =
          philox({dropout_group(position), p, static_cast<uint32_t>(row.h), static_cast<uint32_t>(row.sequence.index)},
                 dropout.key);
    }
    const int place = dropout_place(position);
    const uint32_t bits = random.word[place / 2] >> (place % 2 * 16) & 0xffff;
    visit(j, bits < dropout.threshold ? 0 : dropout.keep_scale);
  }
}

// dS through softcap.
template <class Simd>
void multiply_row(const ScoreRow& row, const float* factors, float* x) {
  each_vector<Simd>(x, row.begin(), row.end(),
                    [&](int64_t j, typename Simd::Vec value) { return Simd::mul(value, Simd::load(factors + j)); });
}

// dP becomes dS = P (Z dP + shift), shift = dLSE - delta, and P becomes P Z. A dead pair has dS = 0 whatever dP is.
template <class Simd>
void score_gradients(const ScoreRow& row, float shift, float* p, float* dp) {
  using S = Simd;
  using Vec = typename S::Vec;
  if (has_dropout(row.problem)) each_kept<S>(row, [&](int64_t j, float z) { dp[j] *= z; });
  for (int64_t j = 0; j < padded_count<S>(row); j += S::kLanes) {
    const Vec prob = S::load(p + j);
    const Vec ds = S::mul(prob, S::add(S::load(dp + j), S::set(shift)));
    S::store(dp + j, S::keep_unless(S::equal(prob, S::set(0)), ds));
  }
  if (has_dropout(row.problem)) each_kept<S>(row, [&](int64_t j, float z) { p[j] *= z; });
}

}  // namespace tilewise::cpu
