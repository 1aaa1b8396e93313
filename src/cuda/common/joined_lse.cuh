// The results over two sets of keys as one.
#pragma once

#include <cmath>

#include "cuda/common/device.cuh"

namespace tilewise::cuda {

struct JoinedLse {
  float lse;           // of both sets; -inf: they are empty
  float own, joining;  // the weights of O of each

  // Of an element of O. What has no weight is not looked at: it may be NaN, as the set is empty or all of it is lost.
  TILEWISE_DEVICE float of(float own_out, float joining_out) const {
    return (own == 0 ? 0 : own * own_out) + (joining == 0 ? 0 : joining * joining_out);
  }
};

TILEWISE_DEVICE JoinedLse join(float lse, float joining) {
  if (joining == -INFINITY) return {lse, 1, 0};
  if (lse == -INFINITY) return {joining, 0, 1};
  const float top = fmaxf(lse, joining), a = expf(lse - top), b = expf(joining - top), sum = a + b;
  return {top + logf(sum), a / sum, b / sum};
}

}  // namespace tilewise::cuda
