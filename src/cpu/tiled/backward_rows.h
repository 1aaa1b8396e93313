// What a backward pass reads: blocks of query rows and chunks of keys, copied once into fp32 scratch of one layout, so
// that neither types nor strides reach the products.
#pragma once

#include "cpu/common/tile.h"

namespace tilewise::cpu {

// Rows and keys of a block. Five copies of Q and dO and two of P and dS share L2; larger or smaller blocks are slower
// at every head dim. Whole panels; keys are a multiple of kTileRows and kStripRows.
template <class Simd>
inline constexpr int64_t kBlockRows = 96 / Simd::kTileCols* Simd::kTileCols;
inline constexpr int64_t kBlockKeys = 96;

template <class Simd>
void read_row_of(const Tensor& t, int64_t offset, int64_t count, float* to) {
  with_element(t.type, [&](auto element) { read_row<Simd>(element_at<decltype(element)>(t, offset), count, 1, to); });
}

[[gnu::always_inline]] static inline void prefetch_row_of(const Tensor& t, int64_t offset, int64_t count) {
  with_element(t.type, [&](auto element) { prefetch_row(element_at<decltype(element)>(t, offset), count); });
}

// How many rows of one tensor to read before those of the next. Where rows lie on pages of their own (BSHD), the same
// rows of three tensors compete for the same sets of L1; where they follow each other, turns are best short.
[[gnu::always_inline]] static inline int64_t rows_in_turn(const Tensor& t) {
  constexpr int64_t kFarApart = 2048;  // bytes
  return t.stride[1] * (t.type == Type::f32 ? 4 : 2) < kFarApart ? 1 : 4;
}

// A block of the rows of one sequence and some neighbouring heads, packed token by token: row = token * heads + head.
// Rows that are absent or contribute nothing (no live key, LSE = -inf) are zeros, whatever their memory holds.
template <class Simd>
class QueryBlock {
  static constexpr int kCols = Simd::kTileCols;

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
      : query_row(row_floats<Simd>(problem.head_dim)),
        value_row(row_floats<Simd>(problem.value_dim)),
        query_panel(panel_floats<Simd>(problem.head_dim)),
        value_panel(panel_floats<Simd>(problem.value_dim)),
        problem_(problem),
        wants_dscores_(wants_dscores) {
    constexpr int64_t rows = kBlockRows<Simd>;
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
        minus_lse[r] = r < count ? -lse_of(problem_.lse, sequence_, token(r), head(r)) : 0;
        live[r] = r < count ? live_keys_of(r) : live[count - 1];
        common.add(live[r]);
      }
      block.add(common);
    }
    return block.hull();
  }

  void load() {
    const int64_t step = rows_in_turn(problem_.q);
    for (int64_t r = 0; r < panels * kCols; r += step) {
      load_rows(problem_.q, r, r + step, query_rows, query_row);
      load_rows(problem_.dout, r, r + step, doutput_rows, value_row);
      if (wants_dscores_) load_shifts(r, r + step);
    }
    for (int64_t r = 0; r < panels * kCols; r += kCols) {
      rows_to_panel<Simd>(query_rows + r * query_row, query_row, problem_.head_dim, query_t + r / kCols * query_panel);
      if (!wants_dscores_) continue;
      rows_to_panel<Simd>(doutput_rows + r * value_row, value_row, problem_.value_dim,
                          doutput_t + r / kCols * value_panel);
    }
  }

  int64_t offset(const Tensor& t, int64_t r) const { return row_offset(t, sequence_, token(r), head(r)); }

 private:
  KeyRange live_keys_of(int64_t r) const {
    const bool empty = minus_lse[r] == kInfinity;
    return empty ? KeyRange{} : live_keys(problem_, sequence_, head(r), token(r));
  }

  bool uses(int64_t r) const { return r < count && !live[r].empty(); }

  void load_rows(const Tensor& t, int64_t begin, int64_t end, float* rows, int64_t row) const {
    for (int64_t r = begin; r < end; ++r) {
      prefetch(t, r + kPrefetchRows);
      if (uses(r)) {
        read_row_of<Simd>(t, offset(t, r), t.shape[3], rows + r * row);
      } else {
        zero<Simd>(rows + r * row, row);
      }
    }
  }

  void load_shifts(int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      prefetch(problem_.out, r + kPrefetchRows);
      if (uses(r)) {
        read_row_of<Simd>(problem_.out, offset(problem_.out, r), problem_.value_dim, output_row_);
        shift[r] = -dot<Simd>(doutput_rows + r * value_row, output_row_, problem_.value_dim);
        if (problem_.dlse) shift[r] += lse_of(problem_.dlse, sequence_, token(r), head(r));
      } else {
        shift[r] = 0;
      }
    }
  }

  [[gnu::always_inline]] void prefetch(const Tensor& t, int64_t r) const {
    if (r < count) prefetch_row_of(t, offset(t, r), t.shape[3]);
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
      : query_row(row_floats<Simd>(problem.head_dim)),
        value_row(row_floats<Simd>(problem.value_dim)),
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
    const int64_t step = rows_in_turn(problem_.k);
    for (int64_t j = begin; j < end; j += step) {
      read_rows(problem_.k, j, lesser(j + step, end), end, key_row(j), query_row);
      read_rows(problem_.v, j, lesser(j + step, end), end, value_row_of(j), value_row);
    }
    if (begin >= end || end < used.hi) return;
    zero<Simd>(key_row(end), kRows * query_row);  // whole tiles are multiplied
    zero<Simd>(value_row_of(end), kRows * value_row);
  }

  void read_rows(const Tensor& t, int64_t begin, int64_t end, int64_t last, float* to, int64_t row) const {
    for (int64_t j = begin; j < end; ++j, to += row) {
      const int64_t ahead = lesser(j + kPrefetchRows, last - 1);
      prefetch_row_of(t, key_offset(t, sequence_, ahead, head_), t.shape[3]);
      read_row_of<Simd>(t, key_offset(t, sequence_, j, head_), t.shape[3], to);
    }
  }

  const Problem& problem_;
  Sequence sequence_;
  int64_t head_;
};

}  // namespace tilewise::cpu
