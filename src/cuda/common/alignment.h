// What kernels that copy 16 bytes at a time ask of a tensor. Host code.
#pragma once

#include "core/problem.h"

namespace tilewise::cuda {

// Writes into `reason`, if it is empty, why rows of the tensor cannot be copied so: its data is not 16-byte aligned, or
// a stride is not a multiple of so many elements. An absent tensor can, and one without data counts as aligned.
void refuse_unaligned(const char* name, const Tensor& tensor, int64_t elements, Text& reason);

}  // namespace tilewise::cuda
