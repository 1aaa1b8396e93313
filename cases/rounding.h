// A bound, to first order, of what rounding does to each output even when all goes well. Tolerance is measured by the
// error of standard attention; where a tensor has few numbers that error may be small by luck, and where a sum is far
// smaller than its terms (dP - rowsum(dout * out)) it says little. This says what each term may bring:
//
// - `unit` of its size, as contract C8 has it;
// - a score is a sum: its exponential is off by 2^-24 of the sizes of the score's terms;
// - lse lies in memory as fp32: P of a backward is off by |lse| 2^-24 (contract C3);
// - out may lie in memory in 16 bits: rowsum(dout * out) is off by half a unit in the last place of its terms.
#pragma once

#include "cases/case_data.h"

namespace tilewise::cases {

// Adds to `bound`, which is dense and fp64. out and lse of the problem are exact, in a backward too.
void bound_rounding(const Problem& problem, double unit, const Outputs& bound);

}  // namespace tilewise::cases
