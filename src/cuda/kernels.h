// The rows that the CUDA back end adds to the kernel table.
#pragma once

#include "core/kernel.h"

namespace tilewise::cuda {

std::span<const Kernel* const> kernels();

}  // namespace tilewise::cuda
