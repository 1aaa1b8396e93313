// What a backward pass reads: blocks of query rows and chunks of keys, copied once into fp32 scratch of one layout, so
// that neither types nor strides reach the products.
#pragma once

#include "cpu/common/tile.h"

namespace tilewise::cpu {

struct BackwardTiles {
  int64_t query_rows;  // of a block, in whole panels; five copies of Q and dO, P and dS of a block share L2
  int64_t keys;        // of a block, a multiple of kTileRows and kStripRows
};

template <class Simd>
BackwardTiles backward_tiles(const Problem& problem) {
  const bool wide = greater(problem.head_dim, problem.value_dim) > 128;
  return {round_up(wide ? 192 : 96, Simd::kTileCols), wide ? 48 : 96};
}

// Floats of a scratch row: whole strips, and half a strip more so that rows fall on all cache sets.
template <class Simd>
int64_t strips_of(int64_t dims) {
  return round_up(dims, Simd::kStripCols);
}
template <class Simd>
int64_t scratch_row(int64_t dims) {
  return strips_of<Simd>(dims) + Simd::kStripCols / 2;
}

template <class Simd>
void read_row_of(const Tensor& t, int64_t offset, int64_t count, float* to) {
  with_element(t.type, [&](auto element) { read_row<Simd>(element_at<decltype(element)>(t, offset), count, 1, to); });
}

[[gnu::always_inline]] static inline void prefetch_row_of(const Tensor& t, int64_t offset, int64_t count) {
  with_element(t.type, [&](auto element) { prefetch_row(element_at<decltype(element)>(t, offset), count); });
}

// a . b over whole vectors; the lanes are summed in double.
template <class Simd>
float dot(const float* a, const float* b, int64_t count) {
  constexpr int kLanes = Simd::kLanes;
  typename Simd::Vec sum[2] = {Simd::set(0), Simd::set(0)};
  for (int64_t i = 0; i < count; i += kLanes) {
    auto& even_or_odd = sum[i / kLanes % 2];
    even_or_odd = Simd::fma(Simd::load(a + i), Simd::load(b + i), even_or_odd);
  }
  float lanes[2 * kLanes];
  Simd::store(lanes, sum[0]), Simd::store(lanes + kLanes, sum[1]);
  double total = 0;
  for (float lane : lanes) total += lane;
  return static_cast<float>(total);
}

// A block of the rows of one sequence and some neighbouring heads, packed token by token: row = token * heads + head.
// Rows that are absent or contribute nothing (no live key, LSE = -inf) are zeros, whatever their memory holds.
template <class Simd>
class QueryBlock {
  static constexpr int kCols = Simd::kTileCols, kLanes = Simd::kLanes;

 public:
  float *query_rows, *query_t;      // [query_rows][query_row], [panels][head_dim][kCols]
  float *doutput_rows, *doutput_t;  // [query_rows][value_row], [panels][value_dim][kCols]
  float *minus_lse, *shift;         // [query_rows], shift = dLSE - delta, delta = rowsum(dO * O)
  KeyRange* live;                   // [query_rows] keys of each row
  RowsRange* panel_live;            // [panels]

  const int64_t query_row, value_row;      // floats of a scratch row
  const int64_t query_panel, value_panel;  // floats of a panel
  int64_t first, count, panels;            // this block

  QueryBlock(const Problem& problem, bool wants_dscores, Carver& carve)
      : query_row(scratch_row<Simd>(problem.head_dim)),
        value_row(scratch_row<Simd>(problem.value_dim)),
        query_panel(round_up(problem.head_dim, kLanes) * kCols),
        value_panel(round_up(problem.value_dim, kLanes) * kCols),
        problem_(problem),
        wants_dscores_(wants_dscores) {
    const int64_t rows = backward_tiles<Simd>(problem).query_rows;
    query_rows = carve.take<float>(rows * query_row);
    doutput_rows = carve.take<float>(rows * value_row);
    query_t = carve.take<float>(rows / kCols * query_panel);
    doutput_t = carve.take<float>(rows / kCols * value_panel);
    minus_lse = carve.take<float>(rows);
    shift = carve.take<float>(rows);
    output_row_ = carve.take<float>(value_row);
    live = carve.take<KeyRange>(rows);
    panel_live = carve.take<RowsRange>(rows / kCols);
    if (!carve.base) return;
    zero<Simd>(query_rows, rows * query_row);  // the tails stay so: loads write whole vectors only
    zero<Simd>(doutput_rows, rows * value_row);
  }

  void set_sequence(const Sequence& sequence, int64_t first_head, int64_t heads) {
    sequence_ = sequence, first_head_ = first_head, heads_ = heads;
  }
  const Sequence& sequence() const { return sequence_; }
  int64_t token(int64_t r) const { return (first + r) / heads_; }
  int64_t head(int64_t r) const { return first_head_ + (first + r) % heads_; }

  // Goes to rows [first_row, first_row + rows) and finds their live keys; returns the span of them.
  KeyRange find_live_keys(int64_t first_row, int64_t rows) {
    first = first_row, count = rows, panels = ceil_div(rows, kCols);
    RowsRange block;
    for (int64_t panel = 0; panel < panels; ++panel) {
      RowsRange& common = panel_live[panel] = {};
      for (int64_t r = panel * kCols; r < (panel + 1) * kCols; ++r) {
        live[r] = r < count ? live_keys_of(r) : live[count - 1];
        common.add(live[r]);
      }
      block.add(common);
    }
    return block.any.empty() ? KeyRange{} : block.any;
  }

  void load() {
    for (int64_t r = 0; r < panels * kCols; ++r) {
      if (r < count && !live[r].empty()) {
        load_row(r);
      } else {
        zero<Simd>(query_rows + r * query_row, query_row);
        zero<Simd>(doutput_rows + r * value_row, value_row);
        minus_lse[r] = shift[r] = 0;
      }
    }
    for (int64_t panel = 0; panel < panels; ++panel) {
      const int64_t r = panel * kCols;
      rows_to_panel<Simd>(query_rows + r * query_row, query_row, problem_.head_dim, query_t + panel * query_panel);
      if (!wants_dscores_) continue;
      rows_to_panel<Simd>(doutput_rows + r * value_row, value_row, problem_.value_dim, doutput_t + panel * value_panel);
    }
  }

 private:
  KeyRange live_keys_of(int64_t r) {
    minus_lse[r] = -at_row(problem_.lse, r);
    return minus_lse[r] == kInfinity ? KeyRange{} : live_keys(problem_, sequence_, head(r), token(r));
  }

  void load_row(int64_t r) {
    if (r + kPrefetchRows < count) prefetch(r + kPrefetchRows);
    float* doutput = doutput_rows + r * value_row;
    read_row_of<Simd>(problem_.q, offset(problem_.q, r), problem_.head_dim, query_rows + r * query_row);
    read_row_of<Simd>(problem_.dout, offset(problem_.dout, r), problem_.value_dim, doutput);
    if (!wants_dscores_) return;
    read_row_of<Simd>(problem_.out, offset(problem_.out, r), problem_.value_dim, output_row_);
    const float delta = dot<Simd>(doutput, output_row_, problem_.value_dim);
    shift[r] = problem_.dlse ? at_row(problem_.dlse, r) - delta : -delta;
  }

  void prefetch(int64_t r) const {
    prefetch_row_of(problem_.q, offset(problem_.q, r), problem_.head_dim);
    prefetch_row_of(problem_.dout, offset(problem_.dout, r), problem_.value_dim);
    prefetch_row_of(problem_.out, offset(problem_.out, r), problem_.value_dim);
  }

  int64_t offset(const Tensor& t, int64_t r) const { return row_offset(t, sequence_, token(r), head(r)); }

  // Of lse or dlse.
  float at_row(const Tensor& t, int64_t r) const {
    return *element_at<float>(t, t.offset(sequence_.q_slot, head(r), sequence_.first_row + token(r)));
  }

  const Problem& problem_;
  const bool wants_dscores_;
  float* output_row_;  // [value_row]
  Sequence sequence_;
  int64_t first_head_, heads_;
};

// K and V of the keys that one unit owns. They are read when first asked for, so that keys which no row uses stay
// unread; what was read is one span.
template <class Simd>
class KeyChunk {
  static constexpr int kRows = Simd::kTileRows;

 public:
  float *key_rows, *value_rows;        // [chunk_keys + kRows][query_row], [value_row]
  const int64_t query_row, value_row;  // floats of a scratch row
  KeyRange keys, used;                 // of the sequence: all, and those read so far

  KeyChunk(const Problem& problem, int64_t most_keys, Carver& carve)
      : query_row(scratch_row<Simd>(problem.head_dim)),
        value_row(scratch_row<Simd>(problem.value_dim)),
        problem_(problem) {
    key_rows = carve.take<float>((most_keys + kRows) * query_row);
    value_rows = carve.take<float>((most_keys + kRows) * value_row);
  }

  void start(const Sequence& sequence, int64_t head, KeyRange chunk) {
    sequence_ = sequence, head_ = head, keys = chunk, used = {};
  }

  // Keys [wanted.lo, wanted.hi) of this chunk, not none.
  void load(KeyRange wanted) {
    if (used.empty()) used = {wanted.lo, wanted.lo};
    read(wanted.lo, used.lo);
    read(used.hi, wanted.hi);
    used = {lesser(used.lo, wanted.lo), greater(used.hi, wanted.hi)};
  }

  float* key_row(int64_t key) const { return key_rows + (key - keys.lo) * query_row; }
  float* value_row_of(int64_t key) const { return value_rows + (key - keys.lo) * value_row; }

 private:
  void read(int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      const int64_t ahead = lesser(j + kPrefetchRows, end - 1);
      prefetch_row_of(problem_.k, key_offset(problem_.k, sequence_, ahead, head_), problem_.head_dim);
      prefetch_row_of(problem_.v, key_offset(problem_.v, sequence_, ahead, head_), problem_.value_dim);
      read_row_of<Simd>(problem_.k, key_offset(problem_.k, sequence_, j, head_), problem_.head_dim, key_row(j));
      read_row_of<Simd>(problem_.v, key_offset(problem_.v, sequence_, j, head_), problem_.value_dim, value_row_of(j));
    }
    if (begin >= end || end < used.hi) return;
    zero<Simd>(key_row(end), kRows * query_row);  // whole tiles are multiplied
    zero<Simd>(value_row_of(end), kRows * value_row);
  }

  const Problem& problem_;
  Sequence sequence_;
  int64_t head_;
};

}  // namespace tilewise::cpu
