// P^T and dS^T of a block of query rows against a block of keys: what dQ, dK, dV and dbias have in common.
//
//   S^T  = K Q^T      P^T  = exp(scale S^T - LSE)            queries in the lanes
//   dP^T = V dO^T     dS^T = P^T (dP^T - delta + dLSE)       queries in the lanes
//
// With score terms: S' = softcap(scale S) + added takes the place of scale S, and dropout multiplies dP, then P:
// dS'^T = P^T (Z dP^T - delta + dLSE), dS^T = dS'^T * softcap'(scale S), P^T Z.
#pragma once

#include "cpu/common/scores.h"
#include "cpu/tiled/backward_rows.h"

namespace tilewise::cpu {

enum class ScoreGradient {
  product,  // dS, by scale * Q K^T: for dQ and dK
  final     // dS', by the score that the softmax sees: for dbias
};

template <class Simd>
class PairBlock {
  using S = Simd;
  using Vec = typename S::Vec;
  static constexpr int kRows = S::kTileRows, kCols = S::kTileCols, kLanes = S::kLanes, kStripRows = S::kStripRows;
  static constexpr float kZeros[kCols] = {};

 public:
  static constexpr int64_t kPairRow = kBlockRows<S> + kLanes;  // not a power of two

  float *probs_t, *dscores_t;  // [keys][kPairRow]
  KeyRange* panel_keys;        // [panels] of this block, in whole tiles; pairs of a panel outside it are zeros
  int64_t first_key, count;    // this block

  PairBlock(const Problem& problem, const QueryBlock<S>& queries, const KeyChunk<S>& keys, ScoreGradient gradient,
            Carver& carve)
      : problem_(problem),
        queries_(queries),
        keys_(keys),
        gradient_(gradient),
        has_terms_(has_score_terms(problem)),
        terms_(problem),
        softcap_(problem) {
    probs_t = carve.take<float>(kBlockKeys * kPairRow);
    dscores_t = carve.take<float>(kBlockKeys * kPairRow);
    products_ = carve.take<float>(2 * kRows * kCols);
    limits_ = carve.take<PanelLimits<S>>(1);
    panel_keys = carve.take<KeyRange>(kBlockRows<S> / kCols);
    if (has_added(problem)) added_t_ = carve.take<float>(kBlockKeys * kCols);
    if (has_dropout(problem)) kept_t_ = carve.take<float>(kBlockKeys * kCols);
  }

  // Keys [first, first + keys) of the chunk, all of which it has read.
  void set_keys(int64_t first, int64_t keys) { first_key = first, count = keys; }

  void compute(int64_t panel, bool wants_dscores) {
    start(panel);
    each_tile([&](int64_t key) { multiply_scores(key); },
              [&](int64_t key) { has_terms_ ? finish_probs_with_terms(key) : finish_probs(key); });
    if (wants_dscores) {
      each_tile([&](int64_t key) { multiply_dprobs(key); },
                [&](int64_t key) { has_terms_ ? finish_dscores_with_terms(key) : finish_dscores(key); });
    }
    if (has_dropout(problem_)) drop_probs();
  }

  float* prob(int64_t key) const { return probs_t + key * kPairRow + panel_ * kCols; }
  float* dscore(int64_t key) const { return dscores_t + key * kPairRow + panel_ * kCols; }

 private:
  void start(int64_t panel) {
    panel_ = panel;
    const RowsRange& range = queries_.panel_live[panel];
    const int64_t tiles_end = round_up(count, kRows);
    begin_ = round_down(clamp(range.any.lo - first_key, 0, count), kRows);
    end_ = round_up(clamp(range.any.hi - first_key, 0, count), kRows);
    if (begin_ >= end_) begin_ = end_ = tiles_end;
    panel_keys[panel] = {begin_, end_};
    zero_pairs(0, begin_);
    zero_pairs(end_, round_up(tiles_end, kStripRows));
    if (begin_ == end_) return;
    if (!whole(begin_, end_ - begin_)) limits_->place(queries_.live + panel * kCols, first_key, count);
    if (has_terms_) fill_terms();
  }

  void zero_pairs(int64_t begin, int64_t end) {
    for (int64_t key = begin; key < end; ++key) zero<S>(prob(key), kCols), zero<S>(dscore(key), kCols);
  }

  // Keys [key, key + keys) of the block exist and are live for every row of the panel.
  bool whole(int64_t key, int64_t keys) const {
    return key + keys <= count && queries_.panel_live[panel_].whole(first_key + key, first_key + key + keys);
  }

  // Two tiles take turns: what finishes one fills the gap in which the last sums of the next come in.
  template <class Multiply, class Finish>
  [[gnu::always_inline]] void each_tile(Multiply multiply, Finish finish) {
    for (int64_t key = begin_; key <= end_; key += kRows) {
      if (key < end_) multiply(key);
      if (key > begin_) finish(key - kRows);
    }
  }

  float* tile(int64_t key) const { return products_ + key / kRows % 2 * kRows * kCols; }

  void multiply_scores(int64_t key) {
    S::product(tile(key), kCols, kZeros, 0, keys_.key_row(first_key + key), keys_.query_row, 1,
               queries_.query_t + panel_ * queries_.query_panel, kCols, round_up(problem_.head_dim, 4));
  }

  // Without terms the sums start from dLSE - delta.
  void multiply_dprobs(int64_t key) {
    S::product(tile(key), kCols, has_terms_ ? kZeros : shift(), 0, keys_.value_row_of(first_key + key), keys_.value_row,
               1, queries_.doutput_t + panel_ * queries_.value_panel, kCols, round_up(problem_.value_dim, 4));
  }

  const float* minus_lse() const { return queries_.minus_lse + panel_ * kCols; }
  const float* shift() const { return queries_.shift + panel_ * kCols; }

  // e^x, where x is above 0 only by rounding or for a dead pair, which may do no harm. NaN stays NaN.
  static Vec prob_of(Vec x) { return exp<S>(S::min(S::set(88), x)); }

  void finish_probs(int64_t key) {
    const Vec scale = S::set(problem_.softmax_scale);
    for (int v = 0; v < kCols; v += kLanes) {
      const Vec lse = S::load(minus_lse() + v);
      for (int r = 0; r < kRows; ++r) {
        const Vec score = S::load(tile(key) + r * kCols + v);
        S::store(prob(key + r) + v, prob_of(S::fma(score, scale, lse)));
      }
    }
    if (!whole(key, kRows)) mask_pairs(key, probs_t);
  }

  void finish_dscores(int64_t key) {
    for (int v = 0; v < kCols; v += kLanes)
      for (int r = 0; r < kRows; ++r) {
        const Vec dprob = S::load(tile(key) + r * kCols + v);
        S::store(dscore(key + r) + v, S::mul(S::load(prob(key + r) + v), dprob));
      }
    if (!whole(key, kRows)) mask_pairs(key, dscores_t);
  }

  // A dead pair is 0, whatever K and V hold.
  [[gnu::noinline]] void mask_pairs(int64_t key, float* pairs_t) {
    for (int v = 0; v < kCols; v += kLanes)
      for (int r = 0; r < kRows; ++r) {
        float* x = pairs_t + (key + r) * kPairRow + panel_ * kCols + v;
        S::store(x, S::keep_if(limits_->live(key + r, v), S::load(x)));
      }
  }

  // ---- Score terms.

  [[gnu::noinline]] void fill_terms() {
    int64_t heads[kCols], rows[kCols];
    for (int64_t i = 0; i < kCols; ++i) {
      const int64_t r = lesser(panel_ * kCols + i, queries_.count - 1);
      heads[i] = queries_.head(r), rows[i] = queries_.token(r);
    }
    const int64_t keys = lesser(end_, count) - begin_;
    terms_.place(queries_.sequence(), heads, rows);
    if (has_added(problem_)) terms_.fill_added(first_key + begin_, keys, added_t_ + begin_ * kCols);
    if (has_dropout(problem_)) terms_.fill_kept(first_key + begin_, keys, kept_t_ + begin_ * kCols);
  }

  // Leaves softcap's slope where dS will be.
  [[gnu::noinline]] void finish_probs_with_terms(int64_t key) {
    const Vec scale = S::set(problem_.softmax_scale), dead = S::set(-kInfinity);
    for (int v = 0; v < kCols; v += kLanes)
      for (int r = 0; r < kRows; ++r) {
        Vec score = S::mul(S::load(tile(key) + r * kCols + v), scale);
        if (has_softcap(problem_)) {
          score = softcap_.of(score);
          S::store(dscore(key + r) + v, softcap_.slope_at(score));
        }
        if (has_added(problem_)) score = add_terms<S>(score, S::load(added_t_ + (key + r) * kCols + v));
        const Vec p = prob_of(S::add(score, S::load(minus_lse() + v)));
        S::store(prob(key + r) + v, S::keep_unless(S::equal(score, dead), p));
      }
    if (!whole(key, kRows)) mask_pairs(key, probs_t);
  }

  [[gnu::noinline]] void finish_dscores_with_terms(int64_t key) {
    for (int v = 0; v < kCols; v += kLanes)
      for (int r = 0; r < kRows; ++r) {
        const Vec p = S::load(prob(key + r) + v);
        Vec dprob = S::load(tile(key) + r * kCols + v);
        if (has_dropout(problem_)) dprob = S::mul(dprob, S::load(kept_t_ + (key + r) * kCols + v));
        Vec dscore_v = S::mul(p, S::add(dprob, S::load(shift() + v)));
        if (has_softcap(problem_) && gradient_ == ScoreGradient::product)
          dscore_v = S::mul(dscore_v, S::load(dscore(key + r) + v));
        S::store(dscore(key + r) + v, S::keep_unless(S::equal(p, S::set(0)), dscore_v));
      }
  }

  [[gnu::noinline]] void drop_probs() {
    for (int64_t key = begin_; key < lesser(end_, count); ++key)
      for (int v = 0; v < kCols; v += kLanes)
        S::store(prob(key) + v, S::mul(S::load(prob(key) + v), S::load(kept_t_ + key * kCols + v)));
  }

  const Problem& problem_;
  const QueryBlock<S>& queries_;
  const KeyChunk<S>& keys_;
  const ScoreGradient gradient_;
  const bool has_terms_;
  ScoreTerms<S> terms_;
  Softcap<S> softcap_;
  float* products_;              // [2][kRows][kCols] of S^T or dP^T
  PanelLimits<S>* limits_;       // live keys of the panel in this block
  float* added_t_ = nullptr;     // [keys][kCols] of the panel
  float* kept_t_ = nullptr;      // [keys][kCols]
  int64_t panel_, begin_, end_;  // this panel and its keys
};

}  // namespace tilewise::cpu
