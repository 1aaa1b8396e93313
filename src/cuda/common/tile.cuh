// What kernels on tensor cores share: copies of rows, and a warp's matrix product out of shared memory.
#pragma once

#include "cuda/ptx/sm80.cuh"

namespace tilewise::cuda {
// Rows of elements from global to shared memory. Four lanes copy 64 bytes of a row at a time, so that most passes
// differ from the first by a constant; the two rows of eight lanes lie four apart, in different banks. Threads beyond
// those that all rows keep busy take other columns. src: the thread's own place in the first pass.
template <class T, int Rows>
struct RowCopy {
  using E = typename T::Element;
  static constexpr int kLanes = 4, kLaneColumns = 8, kRows = T::kThreads / kLanes < Rows ? T::kThreads / kLanes : Rows;
  static constexpr int kStep = T::kThreads / kRows * kLaneColumns;  // columns of a pass
  static constexpr int kColumnPasses = T::kHeadDim / kStep, kPasses = Rows / kRows * kColumnPasses;
  static_assert(Rows % kRows == 0 && T::kHeadDim % kStep == 0);

  static TILEWISE_DEVICE int row() {
    const int i = kStep == kLanes * kLaneColumns ? threadIdx.x : threadIdx.x % (kRows * kLanes);
    return i / 32 * 8 + i / 8 % 4 + i / 4 % 2 * 4;
  }
  static TILEWISE_DEVICE int col() {
    const int first = kStep == kLanes * kLaneColumns ? 0 : threadIdx.x / (kRows * kLanes) * kLanes;
    return (first + threadIdx.x % kLanes) * kLaneColumns;
  }

  static TILEWISE_DEVICE void pass(int index, uint32_t dst, const E* src, int64_t stride, int rows_left) {
    const int i = index / kColumnPasses * kRows, c = index % kColumnPasses * kStep;
    ptx::cp_async_or_zero(dst + (i * T::kPitch + c) * 2, src + i * stride + c, row() + i < rows_left);
  }
  // Rows before first_row and columns from `cols` on become zeros too.
  static TILEWISE_DEVICE void pass_within(int index, uint32_t dst, const E* src, int64_t stride, int rows_left,
                                          int cols, int first_row = 0) {
    const int i = index / kColumnPasses * kRows, c = index % kColumnPasses * kStep;
    const bool inside = row() + i < rows_left && col() + c < cols && row() + i >= first_row;
    ptx::cp_async_or_zero(dst + (i * T::kPitch + c) * 2, src + i * stride + c, inside);
  }
};

// acc (16 M x 16 Cols) += A (16 M x 16 Steps) B (16 Steps x 16 Cols). load_a(k, a) and load_b(k, n, b) fetch fragments,
// B's some mma early; also(k, n) is other work to do in the shadow of the mma. A from registers is made late, from what
// also() left.
template <class T, int Steps, int Cols, int Ahead, bool LateA, int M, class LoadA, class LoadB, class Also>
TILEWISE_DEVICE void multiply(float (&acc)[M][2 * Cols][4], LoadA&& load_a, LoadB&& load_b, Also&& also) {
  uint32_t a[2][M][4], b[Ahead + 1][4];
  load_a(0, a[0]);
#pragma unroll
  for (int i = 0; i < Ahead; ++i) load_b(i / Cols, i % Cols, b[i]);
#pragma unroll
  for (int k = 0; k < Steps; ++k) {
    if (!LateA && k + 1 < Steps) load_a(k + 1, a[(k + 1) % 2]);
#pragma unroll
    for (int n = 0; n < Cols; ++n) {
      const int i = k * Cols + n, next = i + Ahead;
      if (next < Steps * Cols) load_b(next / Cols, next % Cols, b[next % (Ahead + 1)]);
#pragma unroll
      for (int m = 0; m < M; ++m) {
        ptx::mma<T>(acc[m][2 * n], a[k % 2][m], b[i % (Ahead + 1)][0], b[i % (Ahead + 1)][1]);
        ptx::mma<T>(acc[m][2 * n + 1], a[k % 2][m], b[i % (Ahead + 1)][2], b[i % (Ahead + 1)][3]);
      }
      also(k, n);
    }
    if (LateA && k + 1 < Steps) load_a(k + 1, a[(k + 1) % 2]);
  }
}
}  // namespace tilewise::cuda
