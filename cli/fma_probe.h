// The machine's fused multiply-add rate, as it is right now: what a kernel's speed is a share of.
#pragma once

#include "core/kernel.h"

namespace tilewise::cli {

// FLOP/s in fp32 of `threads` threads at once with the instructions of a kernel: chains of fused multiply-adds on
// vectors of AVX-512, AVX2, NEON or SVE; multiply and add on 4 lanes for the baseline. Takes about half a millisecond.
// One thread is timed by its CPU time, as the kernels are, more by the wall clock.
double fma_rate(Isa isa, int threads);

}  // namespace tilewise::cli
