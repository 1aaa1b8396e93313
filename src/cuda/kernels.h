// The rows that the CUDA back end adds to the kernel table.
#pragma once

#include "core/kernel.h"

namespace tilewise::cuda {

std::span<const Kernel* const> kernels();

extern const Kernel v2_forward, v2_backward;
extern const Kernel plain_forward, plain_backward;
extern const Kernel standard_forward, standard_backward;
extern const Kernel v1_forward, v1_backward;

}  // namespace tilewise::cuda
