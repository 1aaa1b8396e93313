#include "cuda/v1/backward.cuh"

namespace tilewise::cuda::v1 {

constinit const BackwardUnit backward_bf16_128[] = {backward_unit<__nv_bfloat16, 128, Room::wide>(),
                                                    backward_unit<__nv_bfloat16, 128, Room::narrow>()};

}  // namespace tilewise::cuda::v1
