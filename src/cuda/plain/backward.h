// The steps of plain's backward pass that stand apart from its two products.
#pragma once

#include "core/kernel.h"

namespace tilewise::cuda::plain {

// dLSE - delta of every row, delta = rowsum(dO O): fp32, (slot, head, row), in the workspace.
Tensor row_shifts(const Problem& problem, char* workspace);
uint64_t row_shift_bytes(const Problem& problem);
Status launch_row_shifts(const Problem& problem, const Tensor& shifts, void* stream);

// dsink: over all rows of a head.
Status launch_sink_gradient(const Problem& problem, const Tensor& shifts, void* stream);

// dbias: over all pairs that read an element of bias. `partials` holds the sums of the warps that share an element.
uint64_t bias_partial_bytes(const Problem& problem);
Status launch_bias_gradient(const Problem& problem, const Tensor& shifts, char* partials, void* stream);

// Onto the device, those of them that the problem needs.
Status load_backward_terms(const Problem& problem);

}  // namespace tilewise::cuda::plain
