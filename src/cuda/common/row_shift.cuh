// What the gradients of a row's scores are shifted by, dS = P (Z dP + shift), and the gradient of a sink, which
// consists of nothing else.
#pragma once

#include <cmath>

#include "cuda/common/element.cuh"
#include "cuda/common/token_blocks.cuh"
#include "cuda/common/warp.cuh"

namespace tilewise::cuda {

// dLSE - rowsum(dO * O), by a warp.
TILEWISE_DEVICE float row_shift(const Problem& p, const Sequence& s, int64_t h, int64_t i) {
  const int64_t dout = row_offset(p.dout, s, i, h), out = row_offset(p.out, s, i, h);
  float delta = 0;
  for (int64_t d = lane(); d < p.value_dim; d += kWarp) {
    delta += read_element(p.dout, dout + d) * read_element(p.out, out + d);
  }
  const float dlse = p.dlse ? read_element(p.dlse, lse_offset(p.dlse, s, i, h)) : 0;
  return dlse - warp_sum(delta);
}

inline constexpr int kSinkThreads = 1024;
inline constexpr int kSinkRows = 128;  // that a warp visits at a time: to find their sequence costs as much as several

// dsink of a head, by a thread block of kSinkThreads: the sink is a key whose score is the logit and whose value is 0.
// In fp64 and one order: a warp takes every few blocks of rows, the first warp adds up the others. shift(s, i) is that
// of row i, which has keys.
template <class Shift>
TILEWISE_DEVICE void sum_dsink(const Problem& p, int64_t h, Shift shift) {
  constexpr int kWarps = kSinkThreads / kWarp;
  __shared__ double sums[kWarps];
  const TokenBlocks blocks = TokenBlocks::rows(p, kSinkRows);
  const int64_t count = blocks.count();
  const float sink = read_element(p.sink, p.sink.offset(h, 0, 0));
  double sum = 0;
  for (int64_t n = warp(); n < count; n += kWarps) {
    const TokenBlock block = blocks.find(n);
    const Sequence s = find_sequence(p, block.sequence);
    const int64_t end = lesser(block.first + kSinkRows, s.rows);
#pragma unroll 4
    for (int64_t i = block.first + lane(); i < end; i += kWarp) {
      const float lse = read_element(p.lse, lse_offset(p.lse, s, i, h));
      if (lse != -INFINITY) sum += double{expf(sink - lse)} * shift(s, i);
    }
  }
  sum = warp_sum(sum);
  if (lane() == 0) sums[warp()] = sum;
  __syncthreads();
  if (warp() > 0) return;
  sum = warp_sum(lane() < kWarps ? sums[lane()] : 0);
  if (lane() == 0) write_element(p.dsink, p.dsink.offset(h, 0, 0), static_cast<float>(sum));
}

}  // namespace tilewise::cuda
