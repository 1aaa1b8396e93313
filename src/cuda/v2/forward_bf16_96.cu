#include "cuda/v2/forward_launch.cuh"

template struct tilewise::cuda::v2::ForwardUnit<__nv_bfloat16, 96>;
template struct tilewise::cuda::v2::GeneralForwardUnit<__nv_bfloat16, 96>;
