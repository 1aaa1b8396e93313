// Which products of a call a matrix library can do as they are: it knows nothing of lengths, masks and rows without
// keys, so each row must see a key and each key a row, and the host must know that. Host code.
#pragma once

#include "cuda/standard/squares.cuh"

namespace tilewise::cuda::standard {

// Enqueues the product; false if the library cannot do it or is not there.
bool multiply_by_library(const Problem& p, const Squares& squares, Result result, void* stream);

}  // namespace tilewise::cuda::standard
