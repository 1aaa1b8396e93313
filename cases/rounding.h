// What rounding may do to each output even when all goes well: docs/contract.md, "How C8 is measured".
#pragma once

#include "cases/case_data.h"

namespace tilewise::cases {

// Adds to `bound`, which is dense and fp64. out and lse of the problem are exact, in a backward too.
void bound_rounding(const Problem& problem, double unit, const Outputs& bound);

}  // namespace tilewise::cases
