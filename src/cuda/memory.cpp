#include "cuda/memory.h"

#include <cuda.h>

#include "core/fields.h"

namespace tilewise::cuda {
namespace {

// A GPU may read all memory of the host on some machines (ATS, HMM).
bool addresses_host(int32_t gpu) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, cudaDevAttrPageableMemoryAccess, gpu) == cudaSuccess && value;
}

// The driver's own question takes half the time of the runtime's.
auto find_pointer_query() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuPointerGetAttribute", &function, 12000, cudaEnableDefault, &found);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return reinterpret_cast<decltype(&cuPointerGetAttribute)>(function);
}

// Says yes to what it is sure of.
bool is_memory_of(int32_t gpu, const void* data) {
  static const auto query = find_pointer_query();
  int ordinal = -1;
  const auto address = reinterpret_cast<CUdeviceptr>(data);
  return query && query(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) == CUDA_SUCCESS && ordinal == gpu;
}

Status check_pointer(const char* name, const void* data, int32_t gpu) {
  if (is_memory_of(gpu, data)) return {};
  cudaPointerAttributes attributes{};
  const cudaError_t error = cudaPointerGetAttributes(&attributes, data);
  if (error != cudaSuccess) return status_of(error, "looking at %s.data", name);
  if (attributes.type == cudaMemoryTypeDevice && attributes.device != gpu) {
    return failure(TW_INVALID_ARGUMENT, "%s.data is memory of GPU %d, but device_index is %d", name, attributes.device,
                   gpu);
  }
  if (attributes.type == cudaMemoryTypeUnregistered && !addresses_host(gpu)) {
    return failure(TW_INVALID_ARGUMENT, "%s.data is %p: GPU %d cannot address it; it must be memory of the GPU", name,
                   data, gpu);
  }
  return {};
}

bool has_elements(const Tensor& tensor) {
  return tensor.shape[0] != 0 && tensor.shape[1] != 0 && tensor.shape[2] != 0 && tensor.shape[3] != 0;
}

}  // namespace

Status check_memory(const Problem& problem, const Launch& launch) {
  const Current current(problem.device_index);
  Status status = current.status();
  each_tensor(problem, [&](const char* name, const Tensor& tensor, Role) {
    if (status.ok() && has_elements(tensor)) status = check_pointer(name, tensor.data, problem.device_index);
  });
  if (status.ok() && launch.workspace) status = check_pointer("exec.workspace", launch.workspace, problem.device_index);
  if (status.ok() && launch.fault) status = check_pointer("exec.fault", launch.fault, problem.device_index);
  return status;
}

Status allocate(int32_t gpu, void* stream, uint64_t bytes, void** memory) {
  const Current current(gpu);
  if (Status status = current.status(); !status.ok()) return status;
  return status_of(cudaMallocAsync(memory, bytes, static_cast<cudaStream_t>(stream)),
                   "allocating a workspace of %llu bytes on GPU %d", static_cast<unsigned long long>(bytes), gpu);
}

void release(int32_t gpu, void* stream, void* memory) {
  const Current current(gpu);
  if (cudaFreeAsync(memory, static_cast<cudaStream_t>(stream)) != cudaSuccess) (void)cudaGetLastError();
}

Status copy(int32_t gpu, void* to, const void* from, uint64_t bytes) {
  const Current current(gpu);
  if (Status status = current.status(); !status.ok()) return status;
  return status_of(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "copying %llu bytes to or from GPU %d",
                   static_cast<unsigned long long>(bytes), gpu);
}

}  // namespace tilewise::cuda
