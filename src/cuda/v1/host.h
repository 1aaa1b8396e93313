// What the host side of both passes of FlashAttention-1 shares.
#pragma once

#include "core/kernel.h"
#include "core/numbers.h"
#include "cuda/common/launch.cuh"
#include "cuda/common/shared_memory.h"

namespace tilewise::cuda::v1 {

// What neither pass serves.
void refuse(const Problem& problem, Text& reason);

inline constexpr int64_t kCopyElements = 8;  // of 16 bytes: strides are multiples of it

// 0, 1, 2: the larger head size is padded to 64, 128, 256.
inline int size_class(const Problem& problem) {
  const int64_t dim = greater(problem.head_dim, problem.value_dim);
  return dim <= 64 ? 0 : dim <= 128 ? 1 : 2;
}

// Its code, if the GPU has the shared memory.
template <class... Parameters>
Status load_within(const char* name, void (*kernel)(Parameters...), int64_t bytes, const Settings& settings) {
  const int64_t most = most_shared_bytes(settings);
  if (bytes <= most) return cuda::load(name, kernel, bytes);
  return failure(TW_UNSUPPORTED, "%s needs %lld bytes of shared memory for a thread block, and may have %lld", name,
                 ll(bytes), ll(most));
}

}  // namespace tilewise::cuda::v1
