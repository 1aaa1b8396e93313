#include "cuda/kernels.h"

namespace tilewise::cuda {

// Best first, `plain` after them; rungs are never chosen, so their place does not matter.
std::span<const Kernel* const> kernels() {
  static constexpr const Kernel* kKernels[] = {
      &v2_forward,       &v2_backward,        //
      &plain_forward,    &plain_backward,     //
      &standard_forward, &standard_backward,  //
      &v1_forward,       &v1_backward,
  };
  return kKernels;
}

}  // namespace tilewise::cuda
