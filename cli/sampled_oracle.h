// Attention of a few rows in fp64, where all of them would take too long.
#pragma once

#include "cli/workload.h"

namespace tilewise::cli {

// max |x - fp64| / max |fp64| of out over `rows` rows of every head, spread evenly, the last one included. For a
// forward call of one causal sequence in bshd.
double sampled_error(const Workload& workload, const Call& call, int64_t rows);

}  // namespace tilewise::cli
