#include "gpu/recorder.h"

#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <cstdlib>

#include "cuda/gpu.h"

namespace tilewise {
namespace gpu {

Recorder& recorder() {
  static Recorder recorder;
  return recorder;
}

namespace {

// The functions that start kernels, and the kernels' names. Filled before main.
std::map<const void*, std::string>& names() {
  static std::map<const void*, std::string> names;
  return names;
}

std::string demangled(const char* name) {
  char* plain = abi::__cxa_demangle(name, nullptr, nullptr, nullptr);
  std::string text = plain ? plain : name;
  std::free(plain);
  return text;
}

}  // namespace
}  // namespace gpu

// Of cuda/gpu.cpp, what kernels ask for.
namespace cuda {

bool needs_sm80(int32_t, Text&) { return true; }
Status status_of(cudaError_t error, const char* tried, ...) {
  return error == cudaSuccess ? Status() : failure(TW_DEVICE_ERROR, "%s", tried);
}

}  // namespace cuda
}  // namespace tilewise

// NOLINTBEGIN(bugprone-reserved-identifier, readability-*): these names are CUDA's
extern "C" {

// ---- What compiled code does before main.

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void**, const char* starter, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  tilewise::gpu::names()[starter] = tilewise::gpu::demangled(name);
}

// ---- What a starter calls; nobody calls starters.

cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { return cudaErrorNotSupported; }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) { return cudaErrorNotSupported; }
unsigned __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { return 0; }

// ---- What kernels are loaded and started with.

cudaError_t CUDARTAPI cudaFuncSetAttribute(const void* starter, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaErrorNotSupported;
  tilewise::gpu::recorder().loaded[tilewise::gpu::names().at(starter)] = value;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaLaunchKernel(const void* starter, dim3 grid, dim3 block, void**, size_t shared_bytes,
                                       cudaStream_t) {
  tilewise::gpu::recorder().started.push_back({.kernel = tilewise::gpu::names().at(starter),
                                               .blocks = int64_t{grid.x} * grid.y * grid.z,
                                               .threads = int64_t{block.x} * block.y * block.z,
                                               .shared_bytes = static_cast<int64_t>(shared_bytes)});
  return cudaSuccess;
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier, readability-*)
