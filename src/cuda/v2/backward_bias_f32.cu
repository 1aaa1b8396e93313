#include "cuda/v2/backward_bias.cuh"

template struct tilewise::cuda::v2::BackwardBiasUnit<float>;
