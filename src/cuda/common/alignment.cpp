#include "cuda/common/alignment.h"

namespace tilewise::cuda {

void refuse_unaligned(const char* name, const Tensor& tensor, int64_t elements, Text& reason) {
  constexpr uintptr_t kCopyBytes = 16;  // of cp.async
  if (!tensor || !reason.empty()) return;
  if (reinterpret_cast<uintptr_t>(tensor.data) % kCopyBytes != 0) {
    return reason.format("%s.data is not 16-byte aligned", name);
  }
  for (int axis = 0; axis < 3 && reason.empty(); ++axis) {
    if (tensor.stride[axis] % elements == 0) continue;
    reason.format("%s.stride[%d] is %lld: it copies %lld elements at a time", name, axis, ll(tensor.stride[axis]),
                  ll(elements));
  }
}

}  // namespace tilewise::cuda
