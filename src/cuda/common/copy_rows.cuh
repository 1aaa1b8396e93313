// Rows of a tensor to shared memory, all columns of a tile, for kernels that do little else meanwhile.
#pragma once

#include "core/problem.h"
#include "cuda/common/element.cuh"
#include "cuda/ptx/sm80.cuh"

namespace tilewise::cuda {

// Four elements of a tensor of 16 bits.
TILEWISE_DEVICE float4 read_four(const Tensor& t, int64_t offset) {
  const uint2 x = *reinterpret_cast<const uint2*>(t.data + offset * 2);
  float2 low, high;
  if (t.type == Type::f16) {
    low = __half22float2(reinterpret_cast<const __half2&>(x.x));
    high = __half22float2(reinterpret_cast<const __half2&>(x.y));
  } else {
    low = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(x.x));
    high = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(x.y));
  }
  return {low.x, low.y, high.x, high.y};
}

// to[r][c] = column first_column + c of the token that lies r tokens past `offset`; 0 past the last column and where
// is_used(r) does not hold. E: the tensor's type, or float for any. What is under way is so as cp.async is.
template <int Threads, int Columns, class E, int Rows, int Pitch, class IsUsed>
TILEWISE_DEVICE void copy_rows(E (&to)[Rows][Pitch], const Tensor& t, int64_t offset, int first_column,
                               IsUsed&& is_used) {
  constexpr int kCopy = 16 / sizeof(E), kPieces = Columns / kCopy;
#pragma unroll 2
  for (int i = threadIdx.x; i < Rows * kPieces; i += Threads) {
    const int row = i / kPieces, column = i % kPieces * kCopy;
    const bool inside = first_column + column < t.shape[3] && is_used(row);
    const int64_t at = offset + row * t.stride[1] + first_column + column;
    if (std::is_same_v<E, float> && t.type != Type::f32) {
      *reinterpret_cast<float4*>(&to[row][column]) = inside ? read_four(t, at) : float4{0, 0, 0, 0};
    } else {
      ptx::cp_async_or_zero(ptx::smem_addr(&to[row][column]), reinterpret_cast<const E*>(t.data) + at, inside);
    }
  }
}

}  // namespace tilewise::cuda
