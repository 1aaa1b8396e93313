// Launches and loads: each one checked, with the kernel's name in the message.
#pragma once

#include <cuda_runtime.h>

#include <climits>
#include <type_traits>

#include "cuda/common/device.cuh"
#include "cuda/gpu.h"

namespace tilewise::cuda {

// How a kernel is started: blocks along one axis, which reaches 2^31 - 1 (contract C5).
struct Grid {
  int64_t blocks = 0;
  int threads = 0;  // of a block
  int64_t shared_bytes = 0;
};

template <class... Parameters>
Status launch(const char* name, void (*kernel)(Parameters...), Grid grid, void* stream,
              const std::type_identity_t<Parameters>&... parameters) {
  if (grid.blocks == 0) return {};
  if (grid.blocks > INT_MAX) {
    return failure(TW_UNSUPPORTED, "%s would need %lld thread blocks: a GPU starts 2^31 - 1 at most", name,
                   ll(grid.blocks));
  }
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&parameters))...};
  const cudaError_t error =
      cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(grid.blocks)),
                       dim3(static_cast<unsigned>(grid.threads)), pointers, static_cast<size_t>(grid.shared_bytes),
                       static_cast<cudaStream_t>(stream));
  return status_of(error, "launching %s", name);
}

// Loads the code onto the current GPU and allows it its shared memory. Planning does this: it may wait for the device.
template <class... Parameters>
Status load(const char* name, void (*kernel)(Parameters...), int64_t shared_bytes) {
  const cudaError_t error =
      cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(shared_bytes));
  return status_of(error, "loading %s", name);
}

}  // namespace tilewise::cuda
