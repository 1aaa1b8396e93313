#include "cuda/v1/forward.cuh"

namespace tilewise::cuda::v1 {

constinit const ForwardUnit forward_f16_64 = forward_unit<__half, 64>();

}  // namespace tilewise::cuda::v1
