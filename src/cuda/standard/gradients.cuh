// Gradients beside the products: what each row of a backward begins with, dbias, dsink.
#pragma once

#include "core/find_keys.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/row_shift.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/standard/pieces.cuh"

namespace tilewise::cuda::standard {

inline constexpr int kGradientThreads = 256, kGradientWarps = kGradientThreads / kWarp;
inline constexpr int kGradientBlocksAtOnce = 2;  // of a multiprocessor: ptxas, left to itself, spills to have more

// ---- Rows: LSE, dLSE - rowsum(dO * O). A warp for each row of a head.

inline Grid grid_of_rows(const Problem& p) {
  return {.blocks = ceil_div(rows_of_heads(p), kGradientWarps), .threads = kGradientThreads};
}

__global__ __launch_bounds__(kGradientThreads,
                             kGradientBlocksAtOnce) void prepare_rows(const __grid_constant__ Problem p,
                                                                      const __grid_constant__ Squares squares) {
  const int64_t index = int64_t{blockIdx.x} * kGradientWarps + threadIdx.x / kWarp;
  const auto [b, h, i] = row_of_head(p, index);
  if (h >= p.heads) return;
  const Sequence s = find_sequence(p, b);
  if (i >= s.rows) return;
  const float shift = row_shift(p, s, h, i);
  if (lane() > 0) return;
  const int64_t at = h * squares.total_rows + token_of(p, s, i);
  squares.shift[at] = shift;
  // A row without a live key has no P, whatever a sink or other keys made of its LSE.
  const bool has_keys = !find_live_keys(p, s, h, i).empty();
  squares.lse[at] = has_keys ? read_element(p.lse, lse_offset(p.lse, s, i, h)) : -INFINITY;
}

// ---- dbias = dS, summed over what the bias repeats along, in a fixed order. A block for 32 columns of a line, or for
// all of them if the bias repeats over the keys.

inline Grid grid_of_dbias(const Problem& p) {
  const int64_t* n = p.dbias.shape;
  return {.blocks = n[0] * n[1] * n[2] * ceil_div(n[3], kWarp), .threads = n[2] == 1 ? kGradientThreads : kWarp};
}

// The range of an axis of extent `all` that adds to one place of an axis of dbias.
TILEWISE_DEVICE KeyRange repeats_of(int64_t extent, int64_t place, int64_t all) {
  return extent == 1 ? KeyRange{0, all} : KeyRange{place, lesser(place + 1, all)};
}

// The sum of dS over rows of a head, every kGradientWarps-th or every one, and the lane's columns.
template <class E>
TILEWISE_DEVICE float sum_of_head(const Problem& p, const Squares& squares, const Sequence& s, int64_t h, KeyRange rows,
                                  KeyRange columns) {
  const KeyRange hull = squares.hull(p, s.index, h / p.group());
  float sum = 0;
  for (int64_t i = rows.lo + threadIdx.x / kWarp; i < rows.hi; i += blockDim.x / kWarp) {
    const E* ds = squares.row_of<E>(squares.dscores, h, token_of(p, s, i));
    for (int64_t j = columns.lo + lane(); j < columns.hi; j += kWarp) {
      if (j >= hull.lo && j < hull.hi) sum += value_of(ds[j]);
    }
  }
  return sum;
}

template <class E>
__global__ __launch_bounds__(kGradientThreads,
                             kGradientBlocksAtOnce) void sum_dbias(const __grid_constant__ Problem p,
                                                                   const __grid_constant__ Squares squares) {
  const int64_t *n = p.dbias.shape, of_line = ceil_div(n[3], kWarp), line = blockIdx.x / of_line;
  const int64_t i = line % n[2], h = line / n[2] % n[1], b = line / n[2] / n[1];
  const int64_t first = blockIdx.x % of_line * kWarp;
  const KeyRange columns = n[3] == 1 ? KeyRange{0, p.max_keys} : KeyRange{first, lesser(first + kWarp, n[3])};
  const KeyRange sequences = repeats_of(n[0], b, p.batch), heads = repeats_of(n[1], h, p.heads);
  float sum = 0;
  for (int64_t from_b = sequences.lo; from_b < sequences.hi; ++from_b) {
    const Sequence s = find_sequence(p, from_b);
    for (int64_t from_h = heads.lo; from_h < heads.hi; ++from_h) {
      sum += sum_of_head<E>(p, squares, s, from_h, repeats_of(n[2], i, s.rows), columns);
    }
  }
  if (n[3] == 1) sum = warp_sum(sum);

  __shared__ float of_warp[kGradientThreads];
  of_warp[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= kWarp || first + lane() >= n[3]) return;
  for (int other = threadIdx.x + kWarp; other < blockDim.x; other += kWarp) sum += of_warp[other];
  write_element(p.dbias, p.dbias.offset(b, h, i, first + lane()), sum);
}

// ---- dsink. A block a head.

__global__ __launch_bounds__(kSinkThreads) void find_dsink(const __grid_constant__ Problem p,
                                                           const __grid_constant__ Squares squares) {
  const int64_t h = blockIdx.x;
  sum_dsink(p, h,
            [&](const Sequence& s, int64_t i) { return squares.shift[h * squares.total_rows + token_of(p, s, i)]; });
}

}  // namespace tilewise::cuda::standard
