#include "cuda/v2/backward_f32.cuh"

template struct tilewise::cuda::v2::BackwardF32Unit<256>;
