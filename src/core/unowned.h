// Rows and keys that lie in a tensor but belong to no sequence: past seqused or past the last offset.
#pragma once

#include "core/problem.h"

namespace tilewise {

// Writes what the contract gives them: out 0, lse -inf, gradients 0 (left alone where gradients accumulate). Kernels
// write the rest, and the whole of dbias and dsink.
void clear_unowned(const Problem& problem);

}  // namespace tilewise
