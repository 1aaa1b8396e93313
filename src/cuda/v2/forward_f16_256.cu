#include "cuda/v2/forward_launch.cuh"

template struct tilewise::cuda::v2::ForwardUnit<__half, 256>;
template struct tilewise::cuda::v2::GeneralForwardUnit<__half, 256>;
