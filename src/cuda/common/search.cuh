// A search on the device, in numbers that the host does not know.
#pragma once

#include <cstdint>

#include "cuda/common/device.cuh"

namespace tilewise::cuda {

// The last of `count` that begins at `place` or before, as begin(i) does not fall; wrong numbers give one of them all
// the same.
template <class Begin>
TILEWISE_DEVICE int64_t last_that_begins_by(int64_t place, int64_t count, Begin begin) {
  int64_t lo = 0, hi = count - 1;
  while (lo < hi) {
    const int64_t middle = lo + (hi - lo + 1) / 2;
    if (begin(middle) <= place) {
      lo = middle;
    } else {
      hi = middle - 1;
    }
  }
  return lo;
}

}  // namespace tilewise::cuda
