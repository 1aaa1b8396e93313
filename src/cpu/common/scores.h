// What stands between S = softmax_scale Q K^T and the softmax's O, apart from key intervals: softcap, bias, ALiBi,
// mask, dropout. For a panel of query rows in the lanes (lane = a row of a head) and a run of keys, as floats beside
// S^T:
//
//   S' = softcap(S) + added,  added = bias - slope |p - key position|, or -inf where `mask` is dead
//   P' = P * kept,            kept = 0 or keep_scale
//
// A problem with none of them (has_score_terms) never comes here.
#pragma once

#include "core/mask.h"
#include "core/numbers.h"
#include "core/philox.h"
#include "cpu/common/element.h"
#include "cpu/common/vector_math.h"

namespace tilewise::cpu {

[[gnu::always_inline]] static inline bool has_softcap(const Problem& problem) { return problem.softcap > 0; }
[[gnu::always_inline]] static inline bool has_added(const Problem& problem) {
  return problem.bias || problem.alibi_slopes || problem.mask;
}
[[gnu::always_inline]] static inline bool has_dropout(const Problem& problem) { return problem.dropout.threshold != 0; }
[[gnu::always_inline]] static inline bool has_score_terms(const Problem& problem) {
  return has_softcap(problem) || has_added(problem) || has_dropout(problem);
}

// S' = S + added: a dead pair stays dead whatever its score.
template <class Simd>
typename Simd::Vec add_terms(typename Simd::Vec score, typename Simd::Vec added) {
  const auto dead = Simd::equal(added, Simd::set(-kInfinity));
  return Simd::select(dead, added, Simd::add(score, added));
}

// cap * tanh(s / cap) and what its gradient is multiplied by. A cap near 0 makes all scores 0 as well as a smaller one,
// whose inverse would be infinite.
template <class Simd>
struct Softcap {
  using Vec = typename Simd::Vec;
  static constexpr float kLeast = 0x1p-126f;
  float cap, inverse;

  explicit Softcap(const Problem& problem)
      : cap(problem.softcap > kLeast ? problem.softcap : kLeast), inverse(1 / cap) {}

  Vec of(Vec score) const { return Simd::mul(Simd::set(cap), tanh<Simd>(Simd::mul(score, Simd::set(inverse)))); }
  Vec slope_at(Vec capped) const {
    const Vec ratio = Simd::mul(capped, Simd::set(inverse));
    return Simd::sub(Simd::set(1), Simd::mul(ratio, ratio));
  }
};

// `added` and `kept` of one panel.
template <class Simd>
class ScoreTerms {
  using S = Simd;
  using Vec = typename S::Vec;
  static constexpr int kCols = S::kTileCols, kLanes = S::kLanes;

 public:
  explicit ScoreTerms(const Problem& problem) : problem_(problem) {}

  // The panel's lanes are rows[i] of query heads[i], i < kCols; a lane without a row of its own repeats another.
  void place(const Sequence& sequence, const int64_t* heads, const int64_t* rows) {
    sequence_ = &sequence;
    for (int i = 0; i < kCols; ++i) {
      if (problem_.bias) bias_at_[i] = problem_.bias.offset(sequence.index, heads[i], rows[i], 0);
      if (problem_.mask) mask_at_[i] = problem_.mask.offset(sequence.index, heads[i], rows[i], 0);
      if (problem_.alibi_slopes) {
        const int64_t at = problem_.alibi_slopes.offset(sequence.index, heads[i], 0);
        minus_slope_[i] = -*element_at<float>(problem_.alibi_slopes, at);
      }
      if (!problem_.alibi_slopes && !has_dropout(problem_)) continue;
      const int64_t p = row_position(problem_, sequence, rows[i]);
      high_[i] = high_part(p), low_[i] = low_part(p);
      position_[i] = static_cast<uint32_t>(p), head_[i] = static_cast<uint32_t>(heads[i]);
    }
  }

  // added_t[0..count)[kCols] of keys first_key + [0, count).
  void fill_added(int64_t first_key, int64_t count, float* added_t) {
    fill_distances(first_key, count, added_t);
    if (problem_.bias) {
      with_element(problem_.bias.type, [&](auto element) {
        const auto add = [](Vec sum, Vec bias) { return S::add(sum, bias); };
        visit<decltype(element)>(problem_.bias, bias_at_, first_key, count, added_t, add);
      });
    }
    if (problem_.mask) {
      const auto kill = [](Vec sum, Vec live) { return S::select(S::equal(live, S::set(0)), S::set(-kInfinity), sum); };
      const int64_t skip = clamp(sequence_->mask_first_key - first_key, 0, count);
      visit<Boolean>(problem_.mask, mask_at_, first_key + skip - sequence_->mask_first_key, count - skip,
                     added_t + skip * kCols, kill);
    }
  }

  // kept_t[0..count)[kCols] of the same keys.
  void fill_kept(int64_t first_key, int64_t count, float* kept_t) {
    uint32_t group = 0;
    for (int64_t j = 0; j < count; ++j) {
      const int64_t position = key_position(problem_, *sequence_, first_key + j);
      if (j == 0 || dropout_group(position) != group) draw(group = dropout_group(position));
      const uint32_t* word = drawn_[dropout_place(position) / 2];
      const int shift = dropout_place(position) % 2 * 16;
      for (int i = 0; i < kCols; ++i) {
        const bool kept = (word[i] >> shift & 0xffff) >= problem_.dropout.threshold;
        kept_t[j * kCols + i] = kept ? problem_.dropout.keep_scale : 0;
      }
    }
  }

 private:
  // A position is high * 2^16 + low, each exact in fp32, and so are their differences.
  static float high_part(int64_t position) { return static_cast<float>(position >> 16); }
  static float low_part(int64_t position) { return static_cast<float>(position & 0xffff); }

  // added_t = -slope |p - key position|, or 0.
  void fill_distances(int64_t first_key, int64_t count, float* added_t) {
    for (int64_t j = 0; j < count; ++j) {
      const int64_t position = problem_.alibi_slopes ? key_position(problem_, *sequence_, first_key + j) : 0;
      const Vec high = S::set(high_part(position)), low = S::set(low_part(position));
      for (int v = 0; v < kCols; v += kLanes) {
        Vec term = S::set(0);
        if (problem_.alibi_slopes) {
          const Vec near = S::sub(S::load(low_ + v), low), far = S::sub(S::load(high_ + v), high);
          term = S::mul(S::load(minus_slope_ + v), absolute<S>(S::fma(far, S::set(65536), near)));
        }
        S::store(added_t + j * kCols + v, term);
      }
    }
  }

  // sum_t[j][lane] = step(sum_t[j][lane], element of the lane's row at column first + j).
  template <class Element, class Step>
  void visit(const Tensor& t, const int64_t* at, int64_t first, int64_t count, float* sum_t, Step step) {
    const int64_t stride = t.stride[3];
    for (int v = 0; v < kCols; v += kLanes)
      for (int64_t j = 0; j < count; j += kLanes) {
        const int64_t columns = lesser(kLanes, count - j);
        Vec x[kLanes];
        for (int i = 0; i < kLanes; ++i)
          x[i] = load_columns(element_at<Element>(t, at[v + i] + (first + j) * stride), stride, columns);
        S::transpose(x);
        for (int i = 0; i < kLanes; ++i) {
          if (i >= columns) break;
          float* sum = sum_t + (j + i) * kCols + v;
          S::store(sum, step(S::load(sum), x[i]));
        }
      }
  }

  template <class Element>
  static Vec load_columns(const Element* from, int64_t stride, int64_t columns) {
    if (stride == 1) return columns == kLanes ? S::load(from) : S::load_first(from, columns);
    Element gathered[kLanes] = {};
    for (int64_t i = 0; i < columns; ++i) gathered[i] = from[i * stride];
    return S::load(gathered);
  }

  // philox() of a group of keys, all lanes in each round so that the loops become vectors.
  void draw(uint32_t group) {
    uint32_t(&c)[4][kCols] = drawn_;
    for (int i = 0; i < kCols; ++i) {
      c[0][i] = group, c[1][i] = position_[i], c[2][i] = head_[i], c[3][i] = static_cast<uint32_t>(sequence_->index);
    }
    uint32_t low_key = static_cast<uint32_t>(problem_.dropout.key);
    uint32_t high_key = static_cast<uint32_t>(problem_.dropout.key >> 32);
    for (int round = 0; round < kPhiloxRounds; ++round, low_key += kPhiloxStep[0], high_key += kPhiloxStep[1])
      for (int i = 0; i < kCols; ++i) philox_round(c[0][i], c[1][i], c[2][i], c[3][i], low_key, high_key);
  }

  const Problem& problem_;
  const Sequence* sequence_ = nullptr;
  int64_t bias_at_[kCols], mask_at_[kCols];              // offset of the lane's row
  float minus_slope_[kCols], high_[kCols], low_[kCols];  // ALiBi: -slope, the row's position
  uint32_t position_[kCols], head_[kCols];               // Philox
  uint32_t drawn_[4][kCols];                             // the random words of a group of keys
};

}  // namespace tilewise::cpu
