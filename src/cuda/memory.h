// Memory and streams of the GPU: whether a call's tensors and its stream are of it, workspaces that come and go with a
// stream, copies.
#pragma once

#include "cuda/gpu.h"

namespace tilewise::cuda {

// Backend's functions of the same names.
Status check_memory(const Problem& problem, const Launch& launch);
Status allocate(int32_t gpu, void* stream, uint64_t bytes, void** memory);
void release(int32_t gpu, void* stream, void* memory);
Status copy(int32_t gpu, void* to, const void* from, uint64_t bytes);

// The same for a merge.
Status check_memory(const Merge& merge, int32_t gpu, void* stream);

}  // namespace tilewise::cuda
