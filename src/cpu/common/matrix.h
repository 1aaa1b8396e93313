// Matrix products over blocks, in the two register tiles of Simd: what `standard` and `v1` are made of.
//
//   C  = A B^T     multiply_transposed    S = Q K^T, dP = dO V^T     A in rows, B in panels
//   C += P B       add_product            O = P V, dQ = dS K         P in rows, B in strips
//   C += P^T A     add_transposed         dV = P^T dO, dK = dS^T Q   P and A in rows, C in panels
//
//   rows    [count][row_floats]                   dims padded with zeros to whole vectors, rows to whole tiles
//   panels  [count / kTileCols][dims][kTileCols]  kTileCols rows side by side in the lanes
//   strips  [dims / kStripCols][stride][kStripCols]
#pragma once

#include "cpu/common/tile.h"
#include "cpu/common/traffic_counter.h"

namespace tilewise::cpu {

// The product's inner sums go over so many rows at a time: what they read again and again stays in L1.
inline constexpr int64_t kDepth = 192;

// Rows [count][row] -> strips [dims / kStripCols][stride][kStripCols].
template <class Simd>
void rows_to_strips(const float* rows, int64_t row, int64_t count, int64_t dims, float* strips, int64_t stride) {
  constexpr int64_t kStrip = Simd::kStripCols;
  for (int64_t i = 0; i < count; ++i)
    for (int64_t d = 0; d < dims; d += kStrip)
      for (int64_t v = 0; v < kStrip; v += Simd::kLanes)
        Simd::store(strips + d * stride + i * kStrip + v, Simd::load(rows + i * row + d + v));
}

// ---- Loads from slow memory.

// to(i)[0..dims) = the item of t that lies at(i) elements from its start, zeros up to a whole vector.
template <class Simd, class At, class To>
void load_each(const Tensor& t, int64_t count, At at, To to) {
  const int64_t dims = t.shape[3];
  count_read(count * dims * size_of(t.type));
  with_element(t.type, [&](auto element) {
    using Element = decltype(element);
    for (int64_t i = 0; i < count; ++i) {
      prefetch_row(element_at<Element>(t, at(lesser(i + kPrefetchRows, count - 1))), dims);
      read_row<Simd>(element_at<Element>(t, at(i)), dims, 1, to(i));
    }
  });
}

// Rows [first, first + count) of query head h.
template <class Simd>
void load_rows(const Tensor& t, const Sequence& s, int64_t h, int64_t first, int64_t count, float* rows) {
  const int64_t row = row_floats<Simd>(t.shape[3]);
  const auto at = [&](int64_t i) { return row_offset(t, s, first + i, h); };
  load_each<Simd>(t, count, at, [&](int64_t i) { return rows + i * row; });
  zero<Simd>(rows + count * row, (round_up(count, Simd::kTileRows) - count) * row);
}

template <class Simd>
void load_row(const Tensor& t, const Sequence& s, int64_t h, int64_t i, float* to) {
  load_each<Simd>(
      t, 1, [&](int64_t) { return row_offset(t, s, i, h); }, [&](int64_t) { return to; });
}

// A block of K or V. Strips hold `stride` keys, a multiple of kTileCols; `staging` holds kTileCols rows.
struct KeyBlock {
  float *panels, *strips;  // null: not wanted
  int64_t stride;
  float* staging;
};

// Keys [first, first + count) of key head h; then zeros up to whole panels.
template <class Simd>
void load_keys(const Tensor& t, const Sequence& s, int64_t h, int64_t first, int64_t count, const KeyBlock& to) {
  constexpr int64_t kCols = Simd::kTileCols;
  const int64_t dims = t.shape[3], row = row_floats<Simd>(dims);
  zero<Simd>(to.staging, kCols * row);
  for (int64_t j = 0; j < count; j += kCols) {
    const int64_t keys = lesser(kCols, count - j);
    const auto at = [&](int64_t i) { return key_offset(t, s, first + j + i, h); };
    load_each<Simd>(t, keys, at, [&](int64_t i) { return to.staging + i * row; });
    zero<Simd>(to.staging + keys * row, (kCols - keys) * row);
    if (to.panels) rows_to_panel<Simd>(to.staging, row, dims, to.panels + j / kCols * panel_floats<Simd>(dims));
    if (to.strips) rows_to_strips<Simd>(to.staging, row, kCols, dims, to.strips + j * Simd::kStripCols, to.stride);
  }
}

// ---- Products. m rows, n keys, dims: as they count, not as they are padded.

// c[m][n] = A B^T, in whole tiles: c has room for m in whole kTileRows, n in whole kTileCols.
template <class Simd>
void multiply_transposed(const float* a, const float* panels, int64_t dims, int64_t m, int64_t n, float* c,
                         int64_t c_row) {
  constexpr int64_t kRows = Simd::kTileRows, kCols = Simd::kTileCols;
  const float zeros[kCols] = {};
  const int64_t a_row = row_floats<Simd>(dims);
  for (int64_t j = 0; j < n; j += kCols)
    for (int64_t i = 0; i < m; i += kRows)
      Simd::product(c + i * c_row + j, c_row, zeros, 0, a + i * a_row, a_row, 1,
                    panels + j / kCols * panel_floats<Simd>(dims), kCols, round_up(dims, 4));
}

// Asks for its share of the rows of P that the next tiles read, while these compute: a square's rows lie pages apart,
// and no hardware prefetcher follows them. 6 points of the FMA peak for P^T A, 2 for P B.
[[gnu::always_inline]] static inline void prefetch_share(const float* p, int64_t p_row, int64_t rows, int64_t cols,
                                                         int64_t share, int64_t shares) {
  for (int64_t r = rows * share / shares; r < rows * (share + 1) / shares; ++r)
    for (int64_t j = 0; j < cols; j += 16) __builtin_prefetch(p + r * p_row + j, 0, 2);
}

// c[m][dims] += P B. P has readable rows up to whole kStripRows and zeros in the columns up to a multiple of 4.
template <class Simd>
void add_product(const float* p, int64_t p_row, const float* strips, int64_t stride, int64_t dims, int64_t m, int64_t n,
                 float* c) {
  constexpr int64_t kRows = Simd::kStripRows, kStrip = Simd::kStripCols;
  const int64_t c_row = row_floats<Simd>(dims);
  for (int64_t j = 0; j < n; j += kDepth) {
    const int64_t keys = round_up(lesser(kDepth, n - j), 4);
    for (int64_t i = 0; i < m; i += kRows)
      for (int64_t d = 0; d < dims; d += kStrip) {
        prefetch_share(p + (i + kRows) * p_row + j, p_row, lesser(kRows, m - i - kRows), keys, d / kStrip,
                       ceil_div(dims, kStrip));
        Simd::strip_product(c + i * c_row + d, c_row, p + i * p_row + j, p_row, strips + d * stride + j * kStrip,
                            kStrip, keys);
      }
  }
}

// c[n][dims] in panels += P^T A. P has zeros (or any numbers, if A has zeros) in the rows up to a multiple of 4.
template <class Simd>
void add_transposed(const float* p, int64_t p_row, const float* a, int64_t dims, int64_t m, int64_t n, float* c) {
  constexpr int64_t kRows = Simd::kTileRows, kCols = Simd::kTileCols;
  const int64_t a_row = row_floats<Simd>(dims);
  for (int64_t i = 0; i < m; i += kDepth) {
    const int64_t rows = round_up(lesser(kDepth, m - i), 4);
    for (int64_t j = 0; j < n; j += kCols) {
      const float* panel = p + i * p_row + j;
      float* sum = c + j / kCols * panel_floats<Simd>(dims);
      for (int64_t d = 0; d < dims; d += kRows) {
        prefetch_share(panel + kCols, p_row, rows, lesser(kCols, n - j - kCols), d / kRows, ceil_div(dims, kRows));
        Simd::product(sum + d * kCols, kCols, sum + d * kCols, kCols, a + i * a_row + d, 1, a_row, panel, p_row, rows);
      }
    }
  }
}

}  // namespace tilewise::cpu
