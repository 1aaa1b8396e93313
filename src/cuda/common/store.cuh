// From accumulators to global memory.
#pragma once

#include "core/problem.h"
#include "cuda/common/element.cuh"
#include "cuda/ptx/sm80.cuh"

namespace tilewise::cuda {

// Two elements of a type of 16 bits.
TILEWISE_DEVICE uint32_t pack_as(Type type, float lo, float hi) {
  return type == Type::f16 ? ptx::pack<__half>(lo, hi) : ptx::pack<__nv_bfloat16>(lo, hi);
}

// Two elements that lie together, at `at`.
TILEWISE_DEVICE void store_pair(const Tensor& t, int64_t at, float a, float b) {
  if (t.type == Type::f32) {
    *reinterpret_cast<float2*>(t.data + at * 4) = {a, b};
  } else {
    *reinterpret_cast<uint32_t*>(t.data + at * 2) = pack_as(t.type, a, b);
  }
}
// The same of a gradient, added to what is there if the call accumulates.
TILEWISE_DEVICE void store_gradient_pair(const Problem& p, const Tensor& t, int64_t at, float a, float b) {
  if (p.accumulate) a += read_element(t, at), b += read_element(t, at + 1);
  store_pair(t, at, a, b);
}

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
