#include "cuda/v2/backward.cuh"

template struct tilewise::cuda::v2::BackwardUnit<__nv_bfloat16, 96>;
