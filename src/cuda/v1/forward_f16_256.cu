#include "cuda/v1/forward.cuh"

namespace tilewise::cuda::v1 {

constinit const ForwardUnit forward_f16_256 = forward_unit<__half, 256>();

}  // namespace tilewise::cuda::v1
