// A warp and its sums, the same bits in every lane and at every run.
#pragma once

#include <cstdint>

#include "cuda/common/device.cuh"

namespace tilewise::cuda {

inline constexpr int kWarp = 32;
inline constexpr uint32_t kAllLanes = 0xffffffff;

TILEWISE_DEVICE int lane() { return static_cast<int>(threadIdx.x % kWarp); }
TILEWISE_DEVICE int warp() { return static_cast<int>(threadIdx.x / kWarp); }  // of the thread block

template <class Real>
TILEWISE_DEVICE Real warp_sum(Real x) {
#pragma unroll
  for (int other = kWarp / 2; other > 0; other /= 2) x += __shfl_xor_sync(kAllLanes, x, other);
  return x;
}

// Leaves NaN out, as fmaxf does.
TILEWISE_DEVICE float warp_max(float x) {
#pragma unroll
  for (int other = kWarp / 2; other > 0; other /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, other));
  return x;
}

}  // namespace tilewise::cuda
