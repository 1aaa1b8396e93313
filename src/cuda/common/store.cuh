// From accumulators to global memory.
#pragma once

#include "core/problem.h"
#include "cuda/ptx/sm80.cuh"

namespace tilewise::cuda {

// Stores a row of accumulators of mma, times a factor, at element `at` of out, which is of type E or fp32.
// acc[n][i]: column 8 n + lane % 4 * 2 + i % 2; half: i / 2.
template <class E, int N>
TILEWISE_DEVICE void store_row(const Tensor& out, int64_t at, const float (&acc)[N][4], int half, float factor,
                               bool inside) {
  const int lane = ptx::thread_index() % 32;
  if (out.type == Type::f32) {
    float* to = reinterpret_cast<float*>(out.data) + at + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const float2 pair = make_float2(acc[n][half * 2] * factor, acc[n][half * 2 + 1] * factor);
      if (inside) *reinterpret_cast<float2*>(to + n * 8) = pair;
    }
    return;
  }
  // Two lanes swap, so that each holds 8 contiguous bytes and four lanes fill a 32-byte sector.
  const bool odd = lane & 1;
  E* to = reinterpret_cast<E*>(out.data) + at + (lane & 1) * 8 + (lane & 2) * 2;
#pragma unroll
  for (int n = 0; n < N; n += 2) {
    const uint32_t a = ptx::pack<E>(acc[n][half * 2] * factor, acc[n][half * 2 + 1] * factor);
    const uint32_t b = ptx::pack<E>(acc[n + 1][half * 2] * factor, acc[n + 1][half * 2 + 1] * factor);
    const uint32_t other = __shfl_xor_sync(~0u, odd ? a : b, 1);
    if (inside) *reinterpret_cast<uint2*>(to + n * 8) = odd ? make_uint2(other, b) : make_uint2(a, other);
  }
}

}  // namespace tilewise::cuda
