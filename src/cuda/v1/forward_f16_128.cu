#include "cuda/v1/forward.cuh"

namespace tilewise::cuda::v1 {

constinit const ForwardUnit forward_f16_128 = forward_unit<__half, 128>();

}  // namespace tilewise::cuda::v1
