// The results over two sets of keys as one.
#pragma once

#include <cmath>

#include "cuda/common/device.cuh"

namespace tilewise::cuda {

struct JoinedLse {
  float lse;           // of both sets; -inf: they are empty
  float own, joining;  // what O of each is multiplied by; 0: it is not to be looked at, as the set is empty or all of
                       // its weight is lost
};

TILEWISE_DEVICE JoinedLse join(float lse, float joining) {
  if (joining == -INFINITY) return {lse, 1, 0};
  if (lse == -INFINITY) return {joining, 0, 1};
  const float top = fmaxf(lse, joining), a = expf(lse - top), b = expf(joining - top), sum = a + b;
  return {top + logf(sum), a / sum, b / sum};
}

}  // namespace tilewise::cuda
