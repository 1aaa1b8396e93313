// What the tiled kernels share: moves between strided memory and scratch tiles, products of few columns, and masks of a
// panel.
//
// A panel is Simd::kTileCols query rows side by side in the vector lanes: [dim][kTileCols].
// A strip is Simd::kStripCols neighbouring dims of many rows: [row][kStripCols].
#pragma once

#include <cstring>

#include "core/mask.h"
#include "core/numbers.h"
#include "cpu/common/element.h"
#include "cpu/common/vector_math.h"
#include "cpu/common/workspace.h"

namespace tilewise::cpu {

// Floats of a scratch row: whole strips, and half a strip more so that rows do not fall on the same cache sets.
template <class Simd>
int64_t row_floats(int64_t dims) {
  return round_up(dims, Simd::kStripCols) + Simd::kStripCols / 2;
}
template <class Simd>
int64_t panel_floats(int64_t dims) {
  return round_up(dims, Simd::kLanes) * Simd::kTileCols;
}

// to[0..count) = from[0..count) * scale, then zeros up to a multiple of kLanes.
template <class Simd, class Element>
void read_row(const Element* from, int64_t count, float scale, float* to) {
  const auto factor = Simd::set(scale);
  int64_t i = 0;
  for (; i + Simd::kLanes <= count; i += Simd::kLanes) Simd::store(to + i, Simd::mul(Simd::load(from + i), factor));
  if (i < count) Simd::store(to + i, Simd::mul(Simd::load_first(from + i, count - i), factor));
}

// to[0..count) = from[0..count) * scale. Reads `from` up to a multiple of kLanes.
template <class Simd, class Element>
void write_row(const float* from, int64_t count, float scale, Element* to) {
  const auto factor = Simd::set(scale);
  int64_t i = 0;
  for (; i + Simd::kLanes <= count; i += Simd::kLanes) Simd::store(to + i, Simd::mul(Simd::load(from + i), factor));
  if (i < count) Simd::store_first(to + i, Simd::mul(Simd::load(from + i), factor), count - i);
}

// A block's rows may lie on a page each (BSHD): asking for them kPrefetchRows ahead won 5 to 10 % there.
inline constexpr int64_t kPrefetchRows = 8;

// The first byte is loaded: prefetches alone do little where the TLB lacks the page (4 % of a BSHD backward).
template <class Element>
[[gnu::always_inline]] inline void prefetch_row(const Element* row, int64_t count) {
  static_cast<void>(*reinterpret_cast<const volatile char*>(row));
  for (int64_t i = 0; i < count; i += 64 / static_cast<int64_t>(sizeof(Element))) __builtin_prefetch(row + i);
}

template <class Simd>
void zero(float* to, int64_t count) {
  std::memset(to, 0, count * sizeof(float));
}

// a . b, both zeros up to whole vectors; lanes are summed in pairs.
template <class Simd>
float dot(const float* a, const float* b, int64_t count) {
  constexpr int kLanes = Simd::kLanes;
  typename Simd::Vec sum[2] = {Simd::set(0), Simd::set(0)};
  for (int64_t i = 0; i < count; i += kLanes) {
    auto& even_or_odd = sum[i / kLanes % 2];
    even_or_odd = Simd::fma(Simd::load(a + i), Simd::load(b + i), even_or_odd);
  }
  float lanes[kLanes];
  Simd::store(lanes, Simd::add(sum[0], sum[1]));
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
}

// ---- Panels: rows [kTileCols][row] <-> panel [dim][kTileCols]. dims is rounded up to kLanes on both sides.

template <class Simd>
void rows_to_panel(const float* rows, int64_t row, int64_t dims, float* panel) {
  constexpr int kLanes = Simd::kLanes;
  for (int lane = 0; lane < Simd::kTileCols; lane += kLanes)
    for (int64_t d = 0; d < dims; d += kLanes) {
      typename Simd::Vec x[kLanes];
      for (int i = 0; i < kLanes; ++i) x[i] = Simd::load(rows + (lane + i) * row + d);
      Simd::transpose(x);
      for (int i = 0; i < kLanes; ++i) Simd::store(panel + (d + i) * Simd::kTileCols + lane, x[i]);
    }
}

// Lane q is multiplied by factor[q] on the way.
template <class Simd>
void panel_to_rows(const float* panel, const float* factor, int64_t dims, float* rows, int64_t row) {
  constexpr int kLanes = Simd::kLanes;
  for (int lane = 0; lane < Simd::kTileCols; lane += kLanes)
    for (int64_t d = 0; d < dims; d += kLanes) {
      typename Simd::Vec x[kLanes];
      const auto f = Simd::load(factor + lane);
      for (int i = 0; i < kLanes; ++i) x[i] = Simd::mul(Simd::load(panel + (d + i) * Simd::kTileCols + lane), f);
      Simd::transpose(x);
      for (int i = 0; i < kLanes; ++i) Simd::store(rows + (lane + i) * row + d, x[i]);
    }
}

// Simd::product(), in tiles of two vectors, for a b and an init whose second vectors are zeros: half the work.
template <class Simd>
void narrow_product(float* c, int64_t c_row, const float* init, int64_t init_row, const float* a, int64_t a_row,
                    int64_t a_step, const float* b, int64_t b_row, int64_t count) {
  constexpr int kRows = Simd::kTileRows, kLanes = Simd::kLanes;
  static_assert(Simd::kTileCols == 2 * kLanes);
  typename Simd::Vec sum[kRows] = {};
  for (int64_t k = 0; k < count; ++k, a += a_step, b += b_row) {
    const auto column = Simd::load(b);
    for (int r = 0; r < kRows; ++r) sum[r] = Simd::fma(Simd::set(a[r * a_row]), column, sum[r]);
  }
  for (int r = 0; r < kRows; ++r, c += c_row, init += init_row) {
    Simd::store(c, Simd::add(Simd::load(init), sum[r]));
    Simd::store(c + kLanes, Simd::set(0));
  }
}

// ---- Masks: the live keys of a panel's rows as floats that count from the first key of a block (exact: it is short).

template <class Simd>
struct PanelLimits {
  float lo[Simd::kTileCols], hi[Simd::kTileCols];

  void place(const KeyRange* rows, int64_t first_key, int64_t keys) {
    for (int i = 0; i < Simd::kTileCols; ++i) {
      lo[i] = static_cast<float>(clamp(rows[i].lo - first_key, 0, keys));
      hi[i] = static_cast<float>(clamp(rows[i].hi - first_key, 0, keys));
    }
  }

  // Lanes [v, v + kLanes) of the panel for which this key is live.
  typename Simd::Mask live(int64_t key, int v) const {
    const auto j = Simd::set(static_cast<float>(key));
    return Simd::without(Simd::below(j, Simd::load(hi + v)), Simd::below(j, Simd::load(lo + v)));
  }
};

}  // namespace tilewise::cpu
