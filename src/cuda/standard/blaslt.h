// cuBLASLt, where this machine has it: opened at run time, at the first plan that could use it. Host code.
//
// TILEWISE_CUBLASLT names its file, or is `none`. By default it is libcublasLt.so.13 or .12, wherever the loader finds
// it or has loaded it for somebody else, as PyTorch does.
#pragma once

#include <cstdint>

#include "core/problem.h"

namespace tilewise::cuda::standard {

// A batch of matrices in memory: lines of elements side by side, along the depth of the product or across it.
struct BatchedMatrix {
  const void* data;
  Type type;
  bool along;
  int64_t stride, batch_stride;  // from line to line, from matrix to matrix; elements
};

// C = factor A B; C has a line for each row.
struct BatchedProduct {
  int64_t rows, cols, depth, batch;
  BatchedMatrix a, b, c;
  float factor;
};

// Opens the library and makes a handle for the current GPU, of this index; once in a process. Planning does this, since
// it may allocate. Without the library nothing happens.
void prepare_blaslt(int32_t gpu);

// Enqueues the product on a stream of that GPU; false if there is no handle, or if the library declines.
bool multiply_by_blaslt(int32_t gpu, const BatchedProduct& product, void* stream);

}  // namespace tilewise::cuda::standard
