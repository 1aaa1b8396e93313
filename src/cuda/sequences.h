// What a call owes beyond its kernel: rows and keys that no sequence owns, and numbers that the host cannot see.
#pragma once

#include "core/kernel.h"

namespace tilewise::cuda {

// Writes what the contract gives to rows past seqused or the last offset: out 0, lse -inf, gradients 0 (left alone
// where gradients accumulate). Kernels write the rest, and the whole of dbias and dsink.
Status clear_unowned(const Problem& problem, const Launch& launch);

// The first bad length, offset or row goes into launch.fault, unless one is there already.
Status check_lengths(const Problem& problem, const Launch& launch);

}  // namespace tilewise::cuda
