#include "cuda/v2/backward_launch.cuh"

template struct tilewise::cuda::v2::BackwardUnit<__nv_bfloat16, 192>;
