// The machine's fused multiply-add rate, as it is right now: what a kernel's speed is a share of.
#pragma once

namespace tilewise::cli {

enum class ProbeIsa {
  avx2,     // 12 chains of vfmadd231ps on 8 lanes
  baseline  // multiply and add on 4 lanes, with what the compiler has for the baseline of this machine
};

// FLOP/s in fp32 of `threads` threads at once; takes about half a millisecond. One thread is timed by its CPU time, as
// the kernels are, more by the wall clock.
double fma_rate(ProbeIsa isa, int threads);

}  // namespace tilewise::cli
