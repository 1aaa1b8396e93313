#include "cuda/gpu.h"

#include <cuda.h>

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <mutex>

namespace tilewise::cuda {
namespace {

constexpr int32_t kLowestCapability = 80;

struct Known {
  std::once_flag once;
  Gpu gpu;
  cudaError_t error = cudaSuccess;
};

cudaError_t read(int32_t index, Gpu& gpu) {
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, index)) return error;
  int clock_khz = 0, memory_khz = 0;
  (void)cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, index);
  (void)cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, index);
  std::memcpy(gpu.name, properties.name, sizeof gpu.name - 1);  // the rest of it is zero
  gpu.compute_capability = properties.major * 10 + properties.minor;
  gpu.multiprocessors = properties.multiProcessorCount;
  gpu.shared_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  gpu.l2_bytes = properties.l2CacheSize;
  gpu.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  gpu.clock_ghz = clock_khz / 1e6;
  gpu.memory_bytes_per_second = 2.0 * memory_khz * 1e3 * properties.memoryBusWidth / 8;
  return cudaSuccess;
}

// The driver's version as people know it: 13000 is 13.0.
void say_why_none(cudaError_t error, Text& why) {
  int driver = 0, built_with = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&built_with);
  if (driver == 0) {
    why.format("no NVIDIA driver is installed");
  } else if (error == cudaErrorInsufficientDriver) {
    why.format("the NVIDIA driver serves CUDA %d.%d; this build needs one for CUDA %d.0 or later", driver / 1000,
               driver % 1000 / 10, built_with / 1000);  // any driver of a major version serves all its runtimes
  } else if (error == cudaErrorNoDevice || error == cudaSuccess) {
    why.format("this process sees no NVIDIA GPU");
  } else {
    why.format("the NVIDIA driver answers: %s", cudaGetErrorString(error));
  }
}

struct Contexts {
  decltype(&cuCtxPushCurrent) push = driver_function<decltype(cuCtxPushCurrent)>("cuCtxPushCurrent");
  decltype(&cuCtxPopCurrent) pop = driver_function<decltype(cuCtxPopCurrent)>("cuCtxPopCurrent");
  decltype(&cuDevicePrimaryCtxRetain) retain =
      driver_function<decltype(cuDevicePrimaryCtxRetain)>("cuDevicePrimaryCtxRetain");
  decltype(&cuDevicePrimaryCtxRelease) release =
      driver_function<decltype(cuDevicePrimaryCtxRelease)>("cuDevicePrimaryCtxRelease");
};

const Contexts& contexts() {
  static const Contexts functions;
  return functions;
}

// The context that the runtime of CUDA, and every library upon it, uses on a GPU. One of all times that it is retained
// is never given back, so that it lives on where nobody else holds it.
CUresult retain_primary(int32_t gpu, CUcontext& context) {
  static std::array<std::once_flag, kMostGpus> kept;
  const CUresult result = contexts().retain(&context, gpu);
  if (result != CUDA_SUCCESS) return result;
  std::call_once(kept[static_cast<size_t>(gpu)], [&] { (void)contexts().retain(&context, gpu); });
  return result;
}

}  // namespace

int32_t gpu_count(Text& why_none) {
  struct Found {
    int count = 0;
    Text why_none;
  };
  static const Found found = [] {
    Found f;
    const cudaError_t error = cudaGetDeviceCount(&f.count);
    if (error != cudaSuccess) f.count = 0, (void)cudaGetLastError();
    if (f.count == 0) say_why_none(error, f.why_none);
    return f;
  }();
  if (found.count == 0) why_none = found.why_none;
  return std::min(found.count, kMostGpus);
}

Status read_gpu(int32_t index, Gpu& gpu) {
  static std::array<Known, kMostGpus> all;
  Known& known = all[static_cast<size_t>(index)];
  std::call_once(known.once, [&] { known.error = read(index, known.gpu); });
  gpu = known.gpu;
  return status_of(known.error, "reading the properties of GPU %d", index);
}

bool needs_sm80(int32_t index, Text& why_not) {
  if (index >= gpu_count(why_not)) {
    if (why_not.empty()) why_not.format("there is no GPU %d", index);
    return false;
  }
  Gpu gpu;
  if (const Status status = read_gpu(index, gpu); !status.ok()) {
    why_not = status.message;
  } else if (gpu.compute_capability < kLowestCapability) {
    why_not.format("%s has compute capability %d.%d; this build's code needs 8.0", gpu.name,
                   gpu.compute_capability / 10, gpu.compute_capability % 10);
  }
  return why_not.empty();
}

Status status_of(cudaError_t error, const char* tried, ...) {
  Status status;
  if (error == cudaSuccess) return status;
  (void)cudaGetLastError();
  status.code = error == cudaErrorMemoryAllocation ? TW_OUT_OF_MEMORY : TW_DEVICE_ERROR;
  va_list arguments;
  va_start(arguments, tried);
  std::vsnprintf(status.message.chars, sizeof status.message.chars, tried, arguments);
  va_end(arguments);
  status.message.append(": %s (%s)", cudaGetErrorString(error), cudaGetErrorName(error));
  return status;
}

void* find_driver_function(const char* name) {
  constexpr unsigned kVersion = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &function, kVersion, cudaEnableDefault, &found);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return function;
}

Current::Current(int32_t gpu) : gpu_(gpu) {
  int current = -1;
  error_ = cudaGetDevice(&current);
  if (error_ != cudaSuccess || current == gpu) return;
  CUcontext context;
  CUresult result = retain_primary(gpu, context);
  if (result == CUDA_SUCCESS) {
    result = contexts().push(context);
    is_pushed_ = result == CUDA_SUCCESS;
    if (!is_pushed_) (void)contexts().release(gpu);
  }
  error_ = static_cast<cudaError_t>(result);  // the runtime's numbers are the driver's
}

Current::~Current() {
  if (!is_pushed_) return;
  CUcontext popped;
  (void)contexts().pop(&popped);
  (void)contexts().release(gpu_);
}

}  // namespace tilewise::cuda
