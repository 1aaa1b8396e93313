// The head sizes that v2's kernels are built for, and what a problem is padded to.
#pragma once

#include <type_traits>

#include "core/problem.h"

namespace tilewise::cuda::v2 {

inline constexpr int kHeadDims[] = {64, 96, 128, 192, 256};

// 0 if the problem's is larger than all of them.
inline int padded_dim(const Problem& p) {
  for (const int dim : kHeadDims) {
    if (p.head_dim <= dim && p.value_dim <= dim) return dim;
  }
  return 0;
}

// call(std::integral_constant<int, dim>()) for one of kHeadDims.
template <class Call>
auto with_head_dim(int dim, Call call) {
  switch (dim) {
    case 64:
      return call(std::integral_constant<int, 64>());
    case 96:
      return call(std::integral_constant<int, 96>());
    case 128:
      return call(std::integral_constant<int, 128>());
    case 192:
      return call(std::integral_constant<int, 192>());
    default:
      return call(std::integral_constant<int, 256>());
  }
}

}  // namespace tilewise::cuda::v2
