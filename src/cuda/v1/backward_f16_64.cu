#include "cuda/v1/backward.cuh"

namespace tilewise::cuda::v1 {

constinit const BackwardUnit backward_f16_64 = backward_unit<__half, 64, Room::narrow>();

}  // namespace tilewise::cuda::v1
