// The roof over a problem: the time that it takes at least, at the rates that the machine has on paper.
#pragma once

#include "core/backend.h"
#include "traffic/traffic.h"

namespace tilewise {

// Bytes of q, k, v, out and lse, and in a backward of their gradients: each read or written once.
double compulsory_bytes(const Problem& problem);

// FLOP/s of all multiprocessors at their highest clock: of the tensor cores for 16-bit types, for fp32 of what keeps
// its precision: three products in TF32 or fused multiply-adds, whichever is faster.
double peak_flops_per_second(const Gpu& gpu, Type type);

// FLOPs at the peak, or bytes at the rate of the memory: whichever takes longer. CPU: the bytes that the model counts,
// over a nominal memory; GPU: compulsory bytes.
double roofline_seconds(const Plan& plan, const Problem& problem, const Traffic& traffic);

}  // namespace tilewise
