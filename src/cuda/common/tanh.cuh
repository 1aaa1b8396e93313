// tanh in a few instructions, and a thread's scores under their softcap.
#pragma once

#include "cuda/common/warp.cuh"
#include "cuda/ptx/sm80.cuh"

namespace tilewise::cuda {

inline constexpr float kSmallTanh = 0.6f;  // arguments up to it need no exponential

// For |x| <= kSmallTanh: the odd polynomial of degree 9 whose relative error is least there, 1.6e-7 with its roundings.
TILEWISE_DEVICE float tanh_of_small(float x) {
  const float square = x * x;
  float sum = fmaf(0.01561261155f, square, -0.05221179128f);
  sum = fmaf(sum, square, 0.1331311613f);
  sum = fmaf(sum, square, -0.3333259821f);
  return fmaf(x * square, sum, x);
}

// To within 2^-21 of its value: what the errors that PTX allows its approximations may add up to.
TILEWISE_DEVICE float tanh_of(float x) {
  constexpr float kTwoLog2e = 2.885390082f;
  const float large = fmaf(-2.f, ptx::reciprocal(1.f + ptx::exp2(kTwoLog2e * fabsf(x))), 1.f);
  return fabsf(x) <= kSmallTanh ? tanh_of_small(x) : copysignf(large, x);
}

// Scores become softcap * tanh(scale * score); also(i, t): with the tanh of number i. Most are far below their cap.
template <int M, int N, class Also>
TILEWISE_DEVICE void cap_scores(float (&s)[M][N][4], float scale, float softcap, Also&& also) {
  const auto each = [&](auto visit) {
#pragma unroll
    for (int i = 0; i < M * N * 4; ++i) visit(s[i / (N * 4)][i / 4 % N][i % 4], i);
  };
  float top = 0;
  each([&](float& x, int) { x *= scale, top = fmaxf(top, fabsf(x)); });
  const auto finish = [&](float& x, int i, float t) { x = softcap * t, also(i, t); };
  if (__any_sync(kAllLanes, top > kSmallTanh)) {
    each([&](float& x, int i) { finish(x, i, tanh_of(x)); });
  } else {
    each([&](float& x, int i) { finish(x, i, tanh_of_small(x)); });
  }
}

}  // namespace tilewise::cuda
