// FlashAttention-2's order on a CPU, written once in terms of Simd's traits. One unit of work:
//
//   for each block of keys:
//     for each panel of the unit's query rows:
//       S^T = K Q^T                         with softcap, bias, ALiBi and mask where the problem has them
//       P^T = 2^(c (S^T - m)),  l += P
//       O^T += V^T P^T                      P with dropout
//   O = O^T / l,  LSE = m + ln l            forward_end.h: with the sink and the result so far
//
// Queries sit in the vector lanes, so K and V are read by scalar broadcast from rows, nothing but Q is transposed, and
// maximum and sum need no step across lanes. A row is (token, head of the group): grouped heads share K and V.
//
//   m  reference maximum of a row, -inf before its first live key. It is lazy: raised only when a score passes it by
//      more than kLazyBound, so P <= 2^24 and the rescaling of O, exact but rare, stays off the fast path.
//
// A row's bits depend on its own scores alone: blocks begin at multiples of kKeys, sums run from key to key, and
// what other rows of a unit or panel add for it are zeros.
#pragma once

#include "cpu/common/forward_end.h"
#include "cpu/common/scores.h"
#include "cpu/common/tile.h"

namespace tilewise::cpu {

inline constexpr float kLazyBound = 24;

template <class Simd>
class ForwardWorker {
  using S = Simd;
  using Vec = typename S::Vec;
  using Mask = typename S::Mask;
  static constexpr int kRows = S::kTileRows, kCols = S::kTileCols, kLanes = S::kLanes, kStrip = S::kStripCols;
  static constexpr int kVecs = kCols / kLanes;

 public:
  static constexpr int64_t kKeys = 128;  // of a block: P^T of a panel and a strip of V stay in L1

  // query_rows: of a unit, at most. All of them use a block of K and V that is copied once.
  ForwardWorker(const Problem& problem, int64_t query_rows, Carver& carve)
      : problem_(problem),
        dims_(round_up(problem.head_dim, kProductStep)),
        query_panel_(panel_floats<S>(problem.head_dim)),
        output_panel_(panel_floats<S>(problem.value_dim)),
        width_(round_up(greater(problem.head_dim, problem.value_dim), kLanes)),
        terms_(problem) {
    // Within these bounds c is far from 0 and infinity, and the lazy bound too.
    const bool plain_scale = problem.softmax_scale > 0x1p-64f && problem.softmax_scale < 0x1p64f;
    natural_ = has_score_terms(problem) || !plain_scale;
    score_unit_ = natural_ ? 1 : problem.softmax_scale;
    exp2_ = Exp2OfMultiple<S>(score_unit_ * kLog2e);
    lazy_bound_ = kLazyBound / exp2_.c;
    carve_room(query_rows, carve);
  }

  // Query rows [first, first + count) of one (sequence, kv head).
  void run(const Sequence& sequence, int64_t kv_head, int64_t first, int64_t count) {
    sequence_ = sequence, kv_head_ = kv_head, count_ = count, panels_ = ceil_div(count, kCols);
    list_rows(first, count);
    find_live_keys();
    clear_sums();
    if (!block_range_.empty()) with_element(problem_.type, [this](auto element) { sum_blocks<decltype(element)>(); });
    store_output();
  }

 private:
  static constexpr int64_t kProductStep = 4;  // S::product() counts in fours

  // A query row: token i of query head h. Heads of the group vary fastest.
  struct Row {
    int64_t token, head;
  };

  struct Room {  // of one worker
    // Of the unit.
    float* query_t;          // [panels][head_dim][kCols]  Q^T
    float* output_t;         // [panels][value_dim][kCols]  O^T
    float *max, *sum;        // [query_rows]  m, l
    Row* rows;               // [query_rows]
    KeyRange* range;         // [query_rows]  live keys
    RowsRange* panel_range;  // [panels]
    // Of a block of keys.
    float* key_rows;      // [kKeys][width]  K
    float* value_strips;  // [value_dim / kStrip][kKeys][kStrip]  V
    // Of one panel against it.
    float* scores;           // [2][kRows][kCols]  S^T: two tiles take turns
    float* probs_t;          // [kKeys][kCols]  P^T
    float* terms_t;          // [kKeys][kCols]  what is added to S^T, then what P^T is multiplied by
    PanelLimits<S>* limits;  // live keys of the panel in this block
    float* staged;           // [kCols][width]  on the way to or from a panel
  };

  void carve_room(int64_t query_rows, Carver& carve) {
    const int64_t panels = query_rows / kCols;
    room_.query_t = carve.take<float>(panels * query_panel_);
    room_.output_t = carve.take<float>(panels * output_panel_);
    room_.max = carve.take<float>(query_rows);
    room_.sum = carve.take<float>(query_rows);
    room_.probs_t = carve.take<float>(kKeys * kCols);
    room_.terms_t = carve.take<float>(has_score_terms(problem_) ? kKeys * kCols : 0);
    room_.scores = carve.take<float>(2 * kRows * kCols);
    room_.limits = carve.take<PanelLimits<S>>(1);
    room_.key_rows = carve.take<float>(kKeys * width_);
    room_.value_strips = carve.take<float>(kKeys * round_up(problem_.value_dim, kStrip));
    room_.staged = carve.take<float>(kCols * width_);
    room_.rows = carve.take<Row>(query_rows);
    room_.range = carve.take<KeyRange>(query_rows);
    room_.panel_range = carve.take<RowsRange>(panels);
  }

  // Lanes past the last row repeat it, so that they make no tile a mixed one.
  void list_rows(int64_t first, int64_t count) {
    const int64_t group = problem_.group();
    int64_t token = first / group, member = first % group;
    for (int64_t r = 0; r < panels_ * kCols; ++r) {
      room_.rows[r] = {token, kv_head_ * group + member};
      if (r + 1 < count && ++member == group) member = 0, ++token;
    }
  }

  void find_live_keys() {
    const bool by_head = keys_differ_by_head(problem_);
    RowsRange block;
    for (int64_t panel = 0; panel < panels_; ++panel) {
      RowsRange& common = room_.panel_range[panel] = {};
      for (int64_t r = panel * kCols; r < (panel + 1) * kCols; ++r) {
        const bool as_before = r > 0 && !by_head && room_.rows[r].token == room_.rows[r - 1].token;
        room_.range[r] =
            as_before ? room_.range[r - 1] : live_keys(problem_, sequence_, room_.rows[r].head, room_.rows[r].token);
        common.add(room_.range[r]);
      }
      block.add(common);
    }
    block_range_ = block.any;
  }

  void clear_sums() {
    zero<S>(room_.output_t, panels_ * output_panel_);
    zero<S>(room_.sum, panels_ * kCols);
    for (int64_t r = 0; r < panels_ * kCols; ++r) room_.max[r] = -kInfinity;
  }

  template <class Element>
  void sum_blocks() {
    load_queries<Element>();
    for (int64_t key = round_down(block_range_.lo, kKeys); key < block_range_.hi; key += kKeys) {
      load_keys_and_values<Element>(key);
      for (int64_t panel = 0; panel < panels_; ++panel) {
        if (room_.panel_range[panel].dead(key, key + kKeys)) continue;
        scores_to_probs(panel);
        add_output(panel);
      }
    }
  }

  // ---- Moves: whatever type and strides the caller has, tiles read contiguous fp32 whose lines do not alias.

  template <class Element>
  void load_queries() {
    for (int64_t panel = 0; panel < panels_; ++panel) {
      for (int i = 0; i < kCols; ++i) {
        const int64_t r = panel * kCols + i;
        if (r < count_) {
          prefetch_row(query_row<Element>(lesser(r + kPrefetchRows, count_ - 1)), problem_.head_dim);
          read_row<S>(query_row<Element>(r), problem_.head_dim, 1, room_.staged + i * width_);
        } else {
          zero<S>(room_.staged + i * width_, width_);
        }
      }
      rows_to_panel<S>(room_.staged, width_, problem_.head_dim, room_.query_t + panel * query_panel_);
    }
  }

  template <class Element>
  const Element* query_row(int64_t r) const {
    return row_of<Element>(problem_.q, sequence_, room_.rows[r].token, room_.rows[r].head);
  }

  // K as rows and V as strips: the keys of the block that begins at first_key, as far as the unit uses them. Places
  // before and after them, up to multiples of kRows, are zeros.
  template <class Element>
  void load_keys_and_values(int64_t first_key) {
    first_key_ = first_key;
    const int64_t begin = greater(block_range_.lo - first_key, 0);
    const int64_t end = lesser(block_range_.hi - first_key, kKeys);
    for (int64_t j = begin; j < end; ++j) {
      const int64_t key = first_key + j, ahead = lesser(key + kPrefetchRows, first_key + end - 1);
      const Element* value = key_of<Element>(problem_.v, sequence_, key, kv_head_);
      prefetch_row(key_of<Element>(problem_.k, sequence_, ahead, kv_head_), problem_.head_dim);
      prefetch_row(key_of<Element>(problem_.v, sequence_, ahead, kv_head_), problem_.value_dim);
      read_row<S>(key_of<Element>(problem_.k, sequence_, key, kv_head_), problem_.head_dim, 1,
                  room_.key_rows + j * width_);
      for (int64_t d = 0; d < problem_.value_dim; d += kStrip)
        read_row<S>(value + d, lesser(kStrip, problem_.value_dim - d), 1, value_at(d, j));
    }
    zero_places(round_down(begin, kRows), begin);
    zero_places(end, round_up(end, kRows));
  }

  void zero_places(int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      zero<S>(room_.key_rows + j * width_, width_);
      for (int64_t d = 0; d < problem_.value_dim; d += kStrip) zero<S>(value_at(d, j), kStrip);
    }
  }

  float* value_at(int64_t d, int64_t j) { return room_.value_strips + (d / kStrip * kKeys + j) * kStrip + d % kStrip; }

  // ---- S^T and P^T of one panel, by tiles of kRows keys.

  // Each tile is made P^T after the next product has started: its exponentials fill the gap in which the product's last
  // sums come in. Keys that are dead for the whole panel are left out.
  void scores_to_probs(int64_t panel) {
    const RowsRange& range = room_.panel_range[panel];
    const int64_t lo = clamp(range.any.lo - first_key_, 0, kKeys);
    const int64_t hi = clamp(range.any.hi - first_key_, 0, kKeys);
    begin_ = round_down(lo, kRows), end_ = round_up(hi, kRows);
    mixed_ = !range.whole(first_key_ + begin_, first_key_ + end_);
    if (mixed_) room_.limits->place(room_.range + panel * kCols, first_key_, kKeys);
    if (has_score_terms(problem_)) place_terms(panel);
    if (has_added(problem_)) terms_.fill_added(first_key_ + lo, hi - lo, room_.terms_t + lo * kCols);
    const float zeros[kCols] = {};
    for (int64_t key = begin_; key <= end_; key += kRows) {
      if (key < end_)
        product(panel, scores(key), zeros, 0, room_.key_rows + key * width_, width_, 1,
                room_.query_t + panel * query_panel_, dims_);
      if (key > begin_) softmax(panel, key - kRows);
    }
    if (has_dropout(problem_)) drop(lo, hi);
  }

  // S::product() of a panel. Few rows fill only its first vector.
  void product(int64_t panel, float* c, const float* init, int64_t init_row, const float* a, int64_t a_row,
               int64_t a_step, const float* b, int64_t count) {
    if constexpr (kVecs == 2)
      if (count_ - panel * kCols <= kLanes)
        return narrow_product<S>(c, kCols, init, init_row, a, a_row, a_step, b, kCols, count);
    S::product(c, kCols, init, init_row, a, a_row, a_step, b, kCols, count);
  }

  float* scores(int64_t key) { return room_.scores + key / kRows % 2 * kRows * kCols; }

  void softmax(int64_t panel, int64_t key) {
    const bool all_live = room_.panel_range[panel].whole(first_key_ + key, first_key_ + key + kRows);
    if (natural_) finish_scores(key);
    if (!all_live || !fast_softmax(panel, key)) careful_softmax(panel, key);
  }

  // P^T = 2^(c (S - m)), l += P. False, with l left as it was, if a score passes m by the bound or is NaN.
  bool fast_softmax(int64_t panel, int64_t key) {
    const float *tile = scores(key), *m = room_.max + panel * kCols;
    float *l = room_.sum + panel * kCols, *probs = room_.probs_t + key * kCols;
    const Vec bound = S::set(lazy_bound_);
    const auto exp2 = exp2_;
    Mask broken = S::none();
    Vec total[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      const Vec reference = S::load(m + v * kLanes);
      Vec p[kRows];
      for (int r = 0; r < kRows; ++r) p[r] = S::sub(S::load(tile + r * kCols + v * kLanes), reference);
      for (int r = 0; r < kRows; ++r) broken = S::either(broken, S::not_below_equal(p[r], bound));
      exp2.apply(p);
      total[v] = S::set(0);
      for (int r = 0; r < kRows; ++r) {
        S::store(probs + r * kCols + v * kLanes, p[r]);
        total[v] = S::add(total[v], p[r]);
      }
      total[v] = S::add(S::load(l + v * kLanes), total[v]);
    }
    if (S::any(broken)) return false;
    for (int v = 0; v < kVecs; ++v) S::store(l + v * kLanes, total[v]);
    return true;
  }

  // The same for every case: dead keys, first live key of a row, a maximum that grew, NaN and Inf.
  [[gnu::noinline]] void careful_softmax(int64_t panel, int64_t key) {
    const Vec minus_inf = S::set(-kInfinity);
    for (int v = 0; v < kVecs; ++v) {
      float *m = room_.max + panel * kCols + v * kLanes, *l = room_.sum + panel * kCols + v * kLanes;
      Vec s[kRows], p[kRows], top = minus_inf;
      for (int r = 0; r < kRows; ++r) {
        s[r] = S::load(scores(key) + r * kCols + v * kLanes);
        if (mixed_) s[r] = S::select(room_.limits->live(key + r, v * kLanes), s[r], minus_inf);
        top = S::max(s[r], top);  // a NaN score leaves top alone
      }
      const Vec old = S::load(m);
      const Mask grown = S::above(S::sub(top, old), S::set(lazy_bound_));
      const Vec reference = S::select(grown, top, old);
      S::store(m, reference);
      if (S::any(S::both(grown, S::above(old, minus_inf)))) {
        Vec factor[1] = {S::sub(old, reference)};
        exp2_.apply(factor);
        rescale(panel, key, v, S::select(grown, factor[0], S::set(1)));
      }
      Vec x[kRows], total = S::set(0);
      for (int r = 0; r < kRows; ++r) p[r] = x[r] = S::sub(s[r], reference);
      exp2_.apply(p);
      for (int r = 0; r < kRows; ++r) {
        p[r] = S::keep_unless(S::equal(s[r], minus_inf), S::select(S::is_nan(x[r]), x[r], p[r]));
        S::store(room_.probs_t + (key + r) * kCols + v * kLanes, p[r]);
        total = S::add(total, p[r]);
      }
      S::store(l, S::add(S::load(l), total));
    }
  }

  // All that was summed under the old reference: P^T of this block, l and O^T.
  void rescale(int64_t panel, int64_t key, int v, Vec factor) {
    const auto scale = [&](float* x, int64_t count) {
      for (int64_t i = 0; i < count; ++i)
        S::store(x + i * kCols + v * kLanes, S::mul(S::load(x + i * kCols + v * kLanes), factor));
    };
    scale(room_.probs_t + begin_ * kCols, key - begin_);
    scale(room_.sum + panel * kCols, 1);
    scale(room_.output_t + panel * output_panel_, problem_.value_dim);
  }

  // ---- Score terms: S in natural units, softmax_scale applied.

  void place_terms(int64_t panel) {
    int64_t heads[kCols], tokens[kCols];
    const Row* rows = room_.rows + panel * kCols;
    for (int i = 0; i < kCols; ++i) heads[i] = rows[i].head, tokens[i] = rows[i].token;
    terms_.place(sequence_, heads, tokens);
  }

  // S = softcap(softmax_scale S) + added, in place; -inf where a pair is dead by it.
  void finish_scores(int64_t key) {
    const Softcap<S> softcap(problem_);
    const bool capped = has_softcap(problem_), more = has_added(problem_);
    const Vec scale = S::set(problem_.softmax_scale);
    const float* added = room_.terms_t + key * kCols;
    float* tile = scores(key);
    for (int i = 0; i < kRows * kCols; i += kLanes) {
      Vec s = S::mul(S::load(tile + i), scale);
      if (capped) s = softcap.of(s);
      if (more) s = add_terms<S>(s, S::load(added + i));
      S::store(tile + i, s);
    }
  }

  // Dropout thins P V, not l.
  void drop(int64_t lo, int64_t hi) {
    terms_.fill_kept(first_key_ + lo, hi - lo, room_.terms_t + lo * kCols);
    for (int64_t i = lo * kCols; i < hi * kCols; i += kLanes)
      S::store(room_.probs_t + i, S::mul(S::load(room_.probs_t + i), S::load(room_.terms_t + i)));
  }

  // ---- O^T += V^T P^T.

  void add_output(int64_t panel) {
    float* output = room_.output_t + panel * output_panel_;
    for (int64_t d = 0; d < problem_.value_dim; d += kRows)
      product(panel, output + d * kCols, output + d * kCols, kCols, value_at(d, begin_), 1, kStrip,
              room_.probs_t + begin_ * kCols, end_ - begin_);
  }

  // ---- O and LSE.

  void store_output() {
    RowEnd end[kCols];
    float factor[kCols] = {};
    for (int64_t panel = 0; panel < panels_; ++panel) {
      const int64_t rows = lesser(kCols, count_ - panel * kCols);
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t r = panel * kCols + i;
        end[i] = end_of_row(problem_, room_.rows[r].head, double{room_.max[r]} * score_unit_, room_.sum[r]);
        factor[i] = end[i].factor;
      }
      panel_to_rows<S>(room_.output_t + panel * output_panel_, factor, problem_.value_dim, room_.staged, width_);
      for (int64_t i = 0; i < rows; ++i) {
        const auto [token, head] = room_.rows[panel * kCols + i];
        float* out = room_.staged + i * width_;
        if (end[i].factor == 0) zero<S>(out, problem_.value_dim);  // 0 * NaN is NaN
        store_row<S>(problem_, sequence_, token, head, end[i].lse, out);
      }
    }
  }

  const Problem& problem_;
  const int64_t dims_;                                // head_dim, rounded up for products
  const int64_t query_panel_, output_panel_, width_;  // floats of a panel of Q^T, of O^T; of a scratch row
  bool natural_;                                      // S is finished step by step; otherwise it stays Q K^T
  float score_unit_;                                  // what a difference of 1 in S is as a natural logarithm
  Exp2OfMultiple<S> exp2_{1};                         // its c is the same to base 2
  float lazy_bound_;                                  // kLazyBound in units of S
  ScoreTerms<S> terms_;
  Room room_;

  // ---- This unit.
  Sequence sequence_;
  int64_t kv_head_, count_, panels_;
  KeyRange block_range_;
  // This block, and this panel's keys in it.
  int64_t first_key_;
  int64_t begin_, end_;  // multiples of kRows
  bool mixed_;           // some of them are dead for some row
};

}  // namespace tilewise::cpu
