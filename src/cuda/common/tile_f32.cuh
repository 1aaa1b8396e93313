// A warp's matrix product of fp32 out of shared memory, on tensor cores: each factor is split into two numbers of TF32,
// and of their products all but the smallest one are summed (3xTF32), so the error is that of fp32.
#pragma once

#include "cuda/common/warp.cuh"
#include "cuda/ptx/sm80.cuh"

namespace tilewise::cuda {

// x = big + small, to within 2^-23 of it: big is x rounded to TF32, and tensor cores do not look at the lowest 13 bits
// of small. (cvt.rna.tf32 takes three instructions to spare infinities, which small makes NaN in any case.)
TILEWISE_DEVICE void split_f32(float x, uint32_t& big, uint32_t& small) {
  big = (__float_as_uint(x) + 0x1000) & 0xffffe000;
  small = __float_as_uint(x - __uint_as_float(big));
}

// The fragments of mma m16n8k8, before the split. a: rows lane / 4 and 8 further, columns lane % 4 and 4 further.
template <int Rows, int Pitch>
TILEWISE_DEVICE void load_a_f32(float (&a)[4], const float (&from)[Rows][Pitch], int column) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = from[lane() / 4 + i % 2 * 8][column + lane() % 4 + i / 2 * 4];
}
// B from rows, each one a column of B: K of S = Q K^T.
template <int Rows, int Pitch>
TILEWISE_DEVICE void load_rows_f32(float (&b)[2], const float (&from)[Rows][Pitch], int row, int column) {
#pragma unroll
  for (int i = 0; i < 2; ++i) b[i] = from[row + lane() / 4][column + lane() % 4 + i * 4];
}
// A from accumulators of 8 columns: a thread holds columns 2 (lane % 4) and one further, where A wants lane % 4 and 4
// further. So the eight columns of A are numbered anew, and load_columns_f32 numbers the rows of B alike.
TILEWISE_DEVICE void accumulators_as_a(float (&a)[4], const float (&acc)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = acc[i % 2 * 2 + i / 2];
}
// A in that order, from rows and from columns of shared memory: P^T of dV = P^T dO, dS of dQ = dS K.
template <int Rows, int Pitch>
TILEWISE_DEVICE void load_a_pairs_f32(float (&a)[4], const float (&from)[Rows][Pitch], int row, int column) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float2 pair = *reinterpret_cast<const float2*>(&from[row + lane() / 4 + i * 8][column + lane() % 4 * 2]);
    a[i] = pair.x, a[i + 2] = pair.y;
  }
}
template <int Rows, int Pitch>
TILEWISE_DEVICE void load_a_columns_f32(float (&a)[4], const float (&from)[Rows][Pitch], int row, int column) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = from[row + lane() % 4 * 2 + i / 2][column + lane() / 4 + i % 2 * 8];
}
// B from columns, with the rows in the order of accumulators_as_a: V of O = P V.
template <int Rows, int Pitch>
TILEWISE_DEVICE void load_columns_f32(float (&b)[2], const float (&from)[Rows][Pitch], int row, int column) {
#pragma unroll
  for (int i = 0; i < 2; ++i) b[i] = from[row + lane() % 4 * 2 + i][column + lane() / 4];
}

// acc (16 x 8 Cols) += A (16 x 8 Steps) B (8 Steps x 8 Cols). load_a(k, a) and load_b(k, n, b) fetch fragments. Tensor
// cores cut off what does not fit into their sums, so these are of few steps: the adders, which round, take the rest.
template <int Steps, int Unroll, int Cols, class LoadA, class LoadB>
TILEWISE_DEVICE void multiply_f32(float (&acc)[Cols][4], LoadA&& load_a, LoadB&& load_b) {
  constexpr int kTogether = Steps % 2 == 0 ? 2 : 1;
#pragma unroll Unroll
  for (int k = 0; k < Steps; k += kTogether) {
    uint32_t a_big[kTogether][4], a_small[kTogether][4];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      float a[4];
      load_a(k + i, a);
#pragma unroll
      for (int j = 0; j < 4; ++j) split_f32(a[j], a_big[i][j], a_small[i][j]);
    }
#pragma unroll
    for (int n = 0; n < Cols; ++n) {
      float part[4] = {};
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        float b[2];
        uint32_t b_big[2], b_small[2];
        load_b(k + i, n, b);
#pragma unroll
        for (int j = 0; j < 2; ++j) split_f32(b[j], b_big[j], b_small[j]);
        ptx::mma_tf32(part, a_small[i], b_big[0], b_big[1]);
        ptx::mma_tf32(part, a_big[i], b_small[0], b_small[1]);
        ptx::mma_tf32(part, a_big[i], b_big[0], b_big[1]);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[n][i] += part[i];
    }
  }
}

}  // namespace tilewise::cuda
