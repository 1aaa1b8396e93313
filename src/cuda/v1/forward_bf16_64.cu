#include "cuda/v1/forward.cuh"

namespace tilewise::cuda::v1 {

constinit const ForwardUnit forward_bf16_64 = forward_unit<__nv_bfloat16, 64>();

}  // namespace tilewise::cuda::v1
