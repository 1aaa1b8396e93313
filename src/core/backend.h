// Backend: what libtilewise_cuda.so gives. It is opened when a call first asks for a GPU, so that everything else works
// without it. Both libraries come from one build, and `build` says so: they share these structs.
#pragma once

#include "core/kernel.h"
#include "core/merge.h"

namespace tilewise {

// One GPU.
struct Gpu {
  char name[64] = {};
  int32_t compute_capability = 0;  // 90 = 9.0
  int32_t multiprocessors = 0;
  int64_t shared_bytes = 0;  // that one thread block may have
  int64_t l2_bytes = 0, memory_bytes = 0;
  double clock_ghz = 0;  // the highest of a multiprocessor
  double memory_bytes_per_second = 0;
};

struct Backend {
  uint64_t build;                // kBuild of core/build.h
  const Kernel* const* kernels;  // (kernel_count) best first
  int64_t kernel_count;

  // How many GPUs there are; if none, `why_none` says what is missing.
  int32_t (*gpu_count)(Text& why_none);
  // Of a GPU that there is; read once.
  Status (*read_gpu)(int32_t index, Gpu& gpu);

  // ---- Calls. Each makes the GPU current and leaves the one that was current as it found it.

  // Every tensor lies where the GPU can address it.
  Status (*check_memory)(const Problem& problem, const Launch& launch);
  // Checks lengths where a fault is asked for, clears what no sequence owns, launches.
  Status (*run)(const Kernel& kernel, const Problem& problem, const Settings& settings, const Launch& launch);
  Status (*load)(const Kernel& kernel, const Problem& problem, const Settings& settings);
  Status (*merge)(const Merge& merge, int32_t gpu, void* stream);
  // Memory that comes and goes in the order of the stream.
  Status (*allocate)(int32_t gpu, void* stream, uint64_t bytes, void** memory);
  void (*release)(int32_t gpu, void* stream, void* memory);

  // ---- For the command and the tests, which hold data on the host.

  Status (*copy)(int32_t gpu, void* to, const void* from, uint64_t bytes);  // either may be on the host; done on return
  Status (*wait)(int32_t gpu, void* stream);
  // Milliseconds on the GPU of what `enqueue` puts onto the stream, called `count` times in a row.
  Status (*time)(int32_t gpu, void* stream, int64_t count, Status (*enqueue)(void* context), void* context,
                 double* milliseconds);
};

// The one function that libtilewise_cuda.so exports.
inline constexpr const char* kBackendDoor = "tilewise_cuda_backend";
using BackendDoor = const Backend*();

// Null if it cannot be opened; `why_not` then says why.
const Backend* cuda_backend(Text* why_not = nullptr);

// Whether calls on this GPU can be served: the back end is there, and so is the GPU. Otherwise TW_DEVICE_ERROR, or
// TW_INVALID_ARGUMENT for an index past the last one.
Status check_gpu(int32_t index);

}  // namespace tilewise
