// What the passes of `plain` share. A warp owns a few rows (or keys) of one head and holds them in registers; the
// others come by 32 at a time, and each lane does the arithmetic of one of them between the two products.
#pragma once

#include "core/find_keys.h"
#include "cuda/common/element.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/scores.cuh"
#include "cuda/common/token_blocks.cuh"
#include "cuda/common/warp.cuh"

namespace tilewise::cuda::plain {

inline constexpr int kThreads = 128, kWarpsOfBlock = kThreads / kWarp;
inline constexpr int kBlocks = 2;  // of a multiprocessor, at least: leaves a thread 255 registers, so that none spill

// ---- Tiles.

template <int Strips, int Rows>
struct Tile {
  static constexpr int kStrips = Strips;  // elements of a row that a lane holds: serves sizes up to 32 * kStrips
  static constexpr int kRows = Rows;      // of a warp: more make more of each load, as far as registers go
};

// calls(tile) with the smallest tile that holds the rows of q, k and v.
template <class Call>
auto with_tile(const Problem& p, Call call) {
  const int64_t dim = greater(p.head_dim, p.value_dim);
  if (dim <= 64) return call(Tile<2, 4>{});
  if (dim <= 128) return call(Tile<4, 4>{});
  if (dim <= 256) return call(Tile<8, 2>{});
  return call(Tile<16, 1>{});
}

// It serves what other kernels refuse.
inline void refuse(const Problem&, Text&) {}

// ---- Units of work, one a warp. They may be more than the warps that a grid can have.

inline Grid grid_of(int64_t units) {
  return {.blocks = lesser(ceil_div(units, kWarpsOfBlock), INT_MAX), .threads = kThreads};
}

template <class F>
TILEWISE_DEVICE void each_unit(int64_t units, F f) {
  const int64_t warps = int64_t{gridDim.x} * kWarpsOfBlock;
  for (int64_t unit = int64_t{blockIdx.x} * kWarpsOfBlock + threadIdx.x / kWarp; unit < units; unit += warps) f(unit);
}

// f(block of rows, head)
template <class F>
TILEWISE_DEVICE void each_block(const TokenBlocks& blocks, int64_t heads, F f) {
  const int64_t count = blocks.count();
  each_unit(count * heads, [&](int64_t unit) { f(blocks.find(unit % count), unit / count); });
}

// ---- Rows across a warp: lane l holds elements l, l + 32, ... and zeros past the end.

// Lanes past the end load the last element and drop it: no branch, so that all loads are on their way together.
template <class E, int kStrips>
TILEWISE_DEVICE void read_strips(const E* row, int size, float (&x)[kStrips]) {
#pragma unroll
  for (int c = 0; c < kStrips; ++c) {
    const int d = c * kWarp + lane();
    const float value = value_of(row[min(d, size - 1)]);
    x[c] = d < size ? value : 0;
  }
}

template <int kStrips>
TILEWISE_DEVICE void read_row(const Tensor& t, int64_t offset, float (&x)[kStrips]) {
  const int size = static_cast<int>(t.shape[3]);
  if (t.type == Type::f16) return read_strips(reinterpret_cast<const __half*>(t.data) + offset, size, x);
  if (t.type == Type::bf16) return read_strips(reinterpret_cast<const __nv_bfloat16*>(t.data) + offset, size, x);
  read_strips(reinterpret_cast<const float*>(t.data) + offset, size, x);
}

template <int kStrips>
TILEWISE_DEVICE void write_row(const Tensor& t, int64_t offset, const float (&x)[kStrips]) {
#pragma unroll
  for (int c = 0; c < kStrips; ++c) {
    const int d = c * kWarp + lane();
    if (d < t.shape[3]) write_element(t, offset + d, x[c]);
  }
}

template <int kStrips>
TILEWISE_DEVICE float dot(const float (&a)[kStrips], const float (&b)[kStrips]) {
  float sum = 0;
#pragma unroll
  for (int c = 0; c < kStrips; ++c) sum += a[c] * b[c];
  return warp_sum(sum);
}

// to += factor * x
template <int kStrips>
TILEWISE_DEVICE void add_scaled(float factor, const float (&x)[kStrips], float (&to)[kStrips]) {
#pragma unroll
  for (int c = 0; c < kStrips; ++c) to[c] += factor * x[c];
}

// ---- Sets of 32 keys or rows, a bit each. What a set leaves out is not looked at (contract C2).

TILEWISE_DEVICE bool has(uint32_t set, int n) { return set >> n & 1; }

template <class F>
TILEWISE_DEVICE void each_of(uint32_t set, F f) {
  for (; set != 0; set &= set - 1) f(__ffs(static_cast<int>(set)) - 1);
}

TILEWISE_DEVICE bool uses(const Problem& p, const Sequence& s, const ScoreRow& row, KeyRange live, int64_t j) {
  return j >= live.lo && j < live.hi && is_used(p, s, row, j);
}

// Rows [first, first + kRows) of a head. Those past the end repeat the last one; they see no key and are not written.
template <int kRows>
struct RowBlock {
  Sequence s;
  int64_t h, kv, first;
  ScoreRow row[kRows];
  KeyRange live[kRows];

  TILEWISE_DEVICE RowBlock(const Problem& p, const Sequence& s, int64_t h, int64_t first)
      : s(s), h(h), kv(h / p.group()), first(first) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      row[r] = score_row(p, s, h, lesser(first + r, s.rows - 1));
      live[r] = find_live_keys(p, s, h, first + r);
    }
  }

  TILEWISE_DEVICE bool has_row(int r) const { return first + r < s.rows; }

  TILEWISE_DEVICE KeyRange hull() const {
    RowsRange range;
#pragma unroll
    for (int r = 0; r < kRows; ++r) range.add(live[r]);
    return range.hull();
  }

  // Which of the 32 keys from `key` on each row uses; the union of them.
  TILEWISE_DEVICE uint32_t find_used(const Problem& p, int64_t key, uint32_t (&used)[kRows]) const {
    uint32_t any = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      used[r] = __ballot_sync(kAllLanes, uses(p, s, row[r], live[r], key + lane()));
      any |= used[r];
    }
    return any;
  }
};

}  // namespace tilewise::cuda::plain
