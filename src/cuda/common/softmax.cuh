// Online softmax of a 16 M x 8 N tile of scores that one warp holds in mma accumulators: s[m][n][i] is row
// 16 m + lane / 4 + i / 2 * 8, column 8 n + lane % 4 * 2 + i % 2. A thread owns pieces of 2 M rows; row r of them is
// m = r / 2, i / 2 = r % 2, and lies 8 r below the first.
#pragma once

#include <cmath>

#include "cuda/common/score_scale.h"
#include "cuda/ptx/sm80.cuh"

namespace tilewise::cuda {

// Over the four lanes that share a row.
TILEWISE_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
TILEWISE_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// The reference may lag behind the true maximum by 2^8: every type has the range, and O rarely needs rescaling.
// Beyond 2^12 rounding it would cost too much: there scores are shifted before they are scaled. Such a row is far, its
// reference is 0, and what is subtracted from its scores lies in shared memory.
template <int M>
struct SoftmaxRows {
  static constexpr int kRows = 2 * M;
  static constexpr float kLag = 8.f, kFar = 4096.f;   // in units of log2
  static constexpr int kEmpty = 1, kFarBit = 1 << 4;  // of row 0

  float ref[kRows] = {};           // subtracted in the exponent, in units of log2
  float sum[kRows] = {};           // of this thread's probabilities
  int unusual = (1 << kRows) - 1;  // bits of rows that have seen no key yet, and of those that are far

  TILEWISE_DEVICE bool is_empty(int r) const { return unusual & kEmpty << r; }
  TILEWISE_DEVICE bool is_far(int r) const { return unusual & kFarBit << r; }

  // Could a score exceed the reference by more than the lag? Integers order non-negative floats (and put NaN on top);
  // negative ones count as zero here, so the answer errs towards yes. fresh: no key was seen, in any lane. Then 0 does
  // as the reference if each thread's best score lies between 0 and the lag.
  template <int N>
  TILEWISE_DEVICE bool may_raise(const float (&s)[M][N][4], float quick_scale, bool fresh) const {
    bool raise = unusual && !fresh;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      int m = 0;
#pragma unroll
      for (int n = 0; n < N; ++n) {
        m = max(max(m, __float_as_int(s[r / 2][n][r % 2 * 2])), __float_as_int(s[r / 2][n][r % 2 * 2 + 1]));
      }
      raise |= !(fmaf(__int_as_float(m), quick_scale, -ref[r]) <= kLag) || (fresh && m == 0);
    }
    return raise;
  }

  TILEWISE_DEVICE void keep_reference() { unusual = 0; }  // instead of raise(), if no lane had to

  // The highest score of each row, or minus the lowest if the scale is negative: -inf if all are dead.
  template <int N>
  static TILEWISE_DEVICE void find_tops(float (&top)[kRows], const float (&s)[M][N][4], const ScoreScale& scale) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      top[r] = -INFINITY;
      if (scale.log2 > 0.f) {
#pragma unroll
        for (int n = 0; n < N; ++n) {
          top[r] = fmaxf(top[r], fmaxf(s[r / 2][n][r % 2 * 2], s[r / 2][n][r % 2 * 2 + 1]));
        }
      } else {
#pragma unroll
        for (int n = 0; n < N; ++n) {
          top[r] = fmaxf(top[r], fmaxf(-s[r / 2][n][r % 2 * 2], -s[r / 2][n][r % 2 * 2 + 1]));
        }
      }
      top[r] = quad_max(top[r]);
    }
  }

  // Raises references to these tops, rescales what was summed so far, shifts the scores of far rows. fresh: all sums
  // and O are still zeros. shifts[kRows]: this thread's own, in shared memory.
  template <int N, int Cols>
  TILEWISE_DEVICE void raise(const float (&top)[kRows], float (&s)[M][N][4], float (&o)[M][Cols][4], bool fresh,
                             float* shifts, const ScoreScale& scale) {
    const float step = fabsf(scale.log2);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const bool was_far = is_far(r), first = is_empty(r);
      const float before = was_far ? shifts[r] * step : ref[r], here = top[r] * step;
      const bool higher = top[r] != -INFINITY && (first || (was_far ? top[r] > shifts[r] : here > before));
      float rescale = 1.f;
      if (higher) {
        const bool far = !(fabsf(here) <= kFar);
        rescale = first ? 0.f : ptx::exp2(far && was_far ? (shifts[r] - top[r]) * step : before - here);
        unusual &= ~((kEmpty | kFarBit) << r);
        unusual |= far ? kFarBit << r : 0;
        ref[r] = far ? 0.f : here;
        shifts[r] = top[r];
      }
      if (!fresh) {
        sum[r] *= rescale;
#pragma unroll
        for (int n = 0; n < Cols; ++n) {
          o[r / 2][n][r % 2 * 2] *= rescale;
          o[r / 2][n][r % 2 * 2 + 1] *= rescale;
        }
      }
      if (is_far(r)) {
        const float shift = scale.log2 > 0.f ? shifts[r] : -shifts[r];
#pragma unroll
        for (int n = 0; n < N; ++n) {
          s[r / 2][n][r % 2 * 2] -= shift;
          s[r / 2][n][r % 2 * 2 + 1] -= shift;
        }
      }
    }
  }

  // After sums were added up over all that share the row.
  TILEWISE_DEVICE float inverse(int r) const { return sum[r] == 0.f ? 0.f : __fdividef(1.f, sum[r]); }
  TILEWISE_DEVICE float lse(int r, const float* shifts, const ScoreScale& scale) const {
    const float of_row = pick(sum, r);
    if (of_row == 0.f) return -INFINITY;
    const float reference = is_far(r) ? shifts[r] * scale.natural : pick(ref, r) * kLn2;
    return reference + log2f(of_row) * kLn2;
  }

 private:
  static TILEWISE_DEVICE float pick(const float (&x)[kRows], int r) {  // registers have no index
    float picked = x[0];
#pragma unroll
    for (int i = 1; i < kRows; ++i) picked = r == i ? x[i] : picked;
    return picked;
  }
};

// Kills the scores of keys at or past the row's limit: for all rows keys_left, for causal ones no more than diagonal +
// r * 8, both counted from the thread's first column.
template <bool Causal, int M, int N>
TILEWISE_DEVICE void kill_scores(float (&s)[M][N][4], int diagonal, int keys_left, float dead) {
#pragma unroll
  for (int r = 0; r < 2 * M; ++r) {
    const int limit = Causal ? min(keys_left, diagonal + r * 8) : keys_left;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      s[r / 2][n][r % 2 * 2] = n * 8 >= limit ? dead : s[r / 2][n][r % 2 * 2];
      s[r / 2][n][r % 2 * 2 + 1] = n * 8 + 1 >= limit ? dead : s[r / 2][n][r % 2 * 2 + 1];
    }
  }
}

}  // namespace tilewise::cuda
