// Dropout on the device (contract C9): its key may lie there, and is the same for all pairs of a call.
#pragma once

#include "core/philox.h"
#include "core/problem.h"
#include "cuda/common/device.cuh"

namespace tilewise::cuda {

TILEWISE_DEVICE uint64_t dropout_key(const Problem& p) {
  if (!p.dropout_state) return p.dropout.key;
  const auto* state = reinterpret_cast<const int64_t*>(p.dropout_state.data);
  const auto seed = static_cast<uint64_t>(state[0]), offset = static_cast<uint64_t>(state[p.dropout_state.stride[0]]);
  return seed + (p.dropout.offset + offset) * 0x9E3779B97F4A7C15u;
}

// What dropout multiplies a probability by, given the pair's 16 random bits: see dropout_bits in core/philox.h.
TILEWISE_DEVICE float dropout_factor(const Problem& p, uint32_t bits) {
  return bits < p.dropout.threshold ? 0 : p.dropout.keep_scale;
}

}  // namespace tilewise::cuda
