#include "cuda/v2/forward_launch.cuh"

template struct tilewise::cuda::v2::GeneralForwardUnit<float, 64>;
