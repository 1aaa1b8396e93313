// The shared memory that one thread block may have, by which tiles are chosen. Host code.
#pragma once

#include "core/kernel.h"

namespace tilewise::cuda {

// Settings count fast memory in fp32 elements, as the M of the papers does.
inline int64_t most_shared_bytes(const Settings& settings) {
  return settings.fast_memory * static_cast<int64_t>(sizeof(float));
}

}  // namespace tilewise::cuda
