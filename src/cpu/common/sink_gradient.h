// The gradient of the sinks, which every kernel's backward shares.
#pragma once

#include "core/problem.h"
#include "core/threads.h"

namespace tilewise::cpu {

// dsink[h] = sum over sequences and rows of exp(sink[h] - lse) (dlse - delta), delta = rowsum(dout * out), in one fixed
// order. A row with lse = -inf saw neither keys nor the sink and adds nothing. Without dsink it does nothing.
void sink_gradient(const Problem& problem, int workers, const Parallel& parallel);

}  // namespace tilewise::cpu
