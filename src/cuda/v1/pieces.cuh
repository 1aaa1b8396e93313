// What the forward and the backward kernel of FlashAttention-1 share.
#pragma once

#include <cfloat>

#include "core/find_keys.h"
#include "cuda/common/element.cuh"
#include "cuda/common/logarithms.h"
#include "cuda/common/store.cuh"
#include "cuda/common/tile.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/v1/units.h"

namespace tilewise::cuda::v1 {

// Finite, so that 0 times it is 0.
TILEWISE_DEVICE float scale_log2(const Problem& p) { return fminf(fmaxf(p.softmax_scale * kLog2e, -FLT_MAX), FLT_MAX); }

// Rows of at most T::kHeadDim columns to shared memory, 16 bytes at a time. Past the rows and columns that there are
// come zeros.
template <class T, int Rows>
TILEWISE_DEVICE void copy_rows(typename T::Element (&to)[Rows][T::kPitch], const typename T::Element* from,
                               int64_t stride, int64_t rows, int64_t columns, int thread, int threads) {
  constexpr int kChunks = T::kHeadDim / 8;  // divides `threads`: a thread stays in its column
  const int step = threads / kChunks, c = thread % kChunks * 8, rows_left = static_cast<int>(lesser(rows, Rows));
  int r = thread / kChunks;
  from += r * stride + c;
  for (uint32_t at = ptx::smem_addr(&to[r][c]); r < Rows; r += step, from += step * stride, at += step * T::kPitch * 2)
    ptx::cp_async_or_zero(at, from, r < rows_left && c < columns);
}

template <class E>
TILEWISE_DEVICE const E* elements(const Tensor& t, int64_t offset) {
  return reinterpret_cast<const E*>(t.data) + offset;
}

// ---- Sums in device memory: a thread's part of 32 rows x 8 Columns, with four rows 8 apart. Each visit moves them,
// past the L1 cache.

struct SumsPart {
  float* data;         // the thread's first four
  int64_t row_stride;  // floats between rows that are 8 apart
  int pieces;          // of 16 columns that there are

  // From this row, a multiple of 8, and this column, a multiple of 16, on.
  TILEWISE_DEVICE SumsPart(const Sums& sums, int64_t row, int column)
      : data(sums.data + (row / 8 * sums.pieces + column / 16) * 128 + lane() * 4),
        row_stride(sums.pieces * 128),
        pieces(static_cast<int>(sums.pieces) - column / 16) {}

  template <int Columns>
  TILEWISE_DEVICE void load(float (&x)[2][Columns][4]) const {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int c = 0; c < Columns / 2; ++c) {
        const float4 y = c < pieces ? ptx::load_past_l1(at(r, c)) : float4{};
        x[r / 2][2 * c][r % 2 * 2] = y.x, x[r / 2][2 * c][r % 2 * 2 + 1] = y.y;
        x[r / 2][2 * c + 1][r % 2 * 2] = y.z, x[r / 2][2 * c + 1][r % 2 * 2 + 1] = y.w;
      }
    }
  }
  // Row r of the four.
  template <int Columns>
  TILEWISE_DEVICE void store(int r, const float (&x)[2][Columns][4], float factor) const {
    const auto store_piece = [&](int c) {
      const float* a = &x[r / 2][2 * c][r % 2 * 2];
      const float* b = &x[r / 2][2 * c + 1][r % 2 * 2];
      __stcg(at(r, c), float4{a[0] * factor, a[1] * factor, b[0] * factor, b[1] * factor});
    };
    if (pieces >= Columns / 2) {
#pragma unroll
      for (int c = 0; c < Columns / 2; ++c) store_piece(c);
    } else {
#pragma unroll
      for (int c = 0; c < Columns / 2; ++c) {
        if (c < pieces) store_piece(c);
      }
    }
  }
  template <int Columns>
  TILEWISE_DEVICE void clear() const {
    for (int r = 0; r < 4; ++r) {
      for (int c = 0; c < Columns / 2 && c < pieces; ++c) __stcg(at(r, c), float4{});
    }
  }

 private:
  TILEWISE_DEVICE float4* at(int r, int c) const { return reinterpret_cast<float4*>(data + r * row_stride + c * 128); }
};

// ---- The keys that rows see.

TILEWISE_DEVICE int64_t from_lane(int64_t x, int mask) { return __shfl_xor_sync(~0u, static_cast<long long>(x), mask); }

// Of a warp's rows together, from those of each lane's.
TILEWISE_DEVICE void join_lanes(RowsRange& rows) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    rows.add(RowsRange{.any = {from_lane(rows.any.lo, mask), from_lane(rows.any.hi, mask)},
                       .all = {from_lane(rows.all.lo, mask), from_lane(rows.all.hi, mask)}});
  }
}

// A thread block's head, in shared memory: in registers it would push accumulators out.
struct Head {
  Sequence s;
  int64_t h, h_kv;        // query head, in the backward the first of the group; key head
  int group;              // query heads of the key head
  int64_t workspace_row;  // where its rows begin
  long long lo, hi;       // the keys that any of its rows sees

  // By one thread.
  TILEWISE_DEVICE void find(const Problem& p, int64_t b, int64_t first_h, int64_t rows, int64_t block) {
    s = find_sequence(p, b);
    // Thread blocks find their way by what they leave in the workspace: it must be theirs alone.
    if (p.packed_q) keep_own(p.cu_seqlens_q, p.batch, b, s.first_row, s.rows);
    if (p.packed_k) keep_own(p.cu_seqlens_k, p.batch, b, s.first_key, s.keys);
    group = static_cast<int>(p.group());
    h = first_h, h_kv = h / group;
    workspace_row = h * rows + first_workspace_row(p, s, block);
    lo = INT64_MAX, hi = 0;
  }
  TILEWISE_DEVICE void add(const RowsRange& rows) {
    if (rows.any.empty()) return;
    atomicMin(&lo, static_cast<long long>(rows.any.lo));
    atomicMax(&hi, static_cast<long long>(rows.any.hi));
  }
};

// Keys of a block, counted from its first: dead if outside.
struct BlockKeys {
  int lo, count;

  TILEWISE_DEVICE BlockKeys(KeyRange live, int64_t first, int keys)
      : lo(static_cast<int>(clamp(live.lo - first, 0, keys))),
        count(static_cast<int>(clamp(live.hi - first, 0, keys)) - lo) {}
  TILEWISE_DEVICE BlockKeys(int lo, int count) : lo(lo), count(count) {}
  TILEWISE_DEVICE bool dead(int key) const {
    return static_cast<unsigned>(key - lo) >= static_cast<unsigned>(count > 0 ? count : 0);
  }
};

}  // namespace tilewise::cuda::v1
