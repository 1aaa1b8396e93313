// How dK and dV leave: by the shared memory of K and V, so that rows are written in one piece.
#pragma once

#include "cuda/v2/backward_rows.cuh"
#include "cuda/v2/backward_shape.cuh"

namespace tilewise::cuda::v2 {

template <class T>
class StoreOfKeys {
  using E = typename T::Element;
  using Sums = float[2][T::kOwnCols / 8][4];  // of a warp: 32 keys, its columns
  using Packed = E[T::kKeys][T::kPitch];
  using Floats = float[T::kKeys][T::kPitch];  // K's place and V's

  const Problem& p_;
  BackwardStorage<T>& smem_;
  const int warp_, lane_;

  // put(row, col, the two elements that lie there)
  template <class Put>
  TILEWISE_DEVICE void each_pair(const Sums& x, Put put) const {
    const int lane = lane_, row = warp_ / T::kParts * 32 + lane / 4,
              col = warp_ % T::kParts * T::kOwnCols + lane % 4 * 2;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int c = 0; c < T::kOwnCols / 8; ++c) {
        const float* pair = &x[r / 2][c][r % 2 * 2];
        put(row + r * 8, col + c * 8, pair[0], pair[1]);
      }
    }
  }
  // put(row, col, offset in t) of each eight elements that there are
  template <class Put>
  TILEWISE_DEVICE void each_eight(const Tensor& t, Put put) const {
    constexpr int kChunks = T::kHeadDim / 8;
    const KeyBlock<T>& block = smem_.block;
    const int64_t first = t.offset(block.k_slot, block.first_token, block.kv_head);
    for (int i = int(threadIdx.x); i < T::kKeys * kChunks; i += T::kThreads) {
      const int row = i / kChunks, col = i % kChunks * 8;
      if (row < block.keys_left && col < t.shape[3]) put(row, col, first + row * t.stride[1] + col);
    }
  }

  // Through `rows`, or in fp32 through K's place and V's.
  TILEWISE_DEVICE void store(const Sums& x, float by, const Tensor& t, Packed& rows) const {
    if (!t) return;
    if (t.type == Type::f32) {
      auto& floats = reinterpret_cast<Floats&>(smem_.k);
      __syncthreads();
      each_pair(x, [&](int row, int col, float a, float b) {
        *reinterpret_cast<float2*>(&floats[row][col]) = {a * by, b * by};
      });
      __syncthreads();
      each_eight(t, [&](int row, int col, int64_t at) { store_gradient<E>(t, at, &floats[row][col], p_.accumulate); });
    } else {
      each_pair(x, [&](int row, int col, float a, float b) {
        *reinterpret_cast<uint32_t*>(&rows[row][col]) = ptx::pack<E>(a * by, b * by);
      });
      __syncthreads();
      each_eight(t, [&](int row, int col, int64_t at) {
        *reinterpret_cast<uint4*>(t.data + at * 2) = *reinterpret_cast<const uint4*>(&rows[row][col]);
      });
    }
  }

 public:
  TILEWISE_DEVICE StoreOfKeys(const Problem& p, BackwardStorage<T>& smem, int warp, int lane)
      : p_(p), smem_(smem), warp_(warp), lane_(lane) {}

  TILEWISE_DEVICE void operator()(const Sums& dk, const Sums& dv) const {
    store(dk, p_.softmax_scale, p_.dk, smem_.k);
    store(dv, 1, p_.dv, smem_.v);
  }
};

}  // namespace tilewise::cuda::v2
