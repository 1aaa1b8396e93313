#include "cuda/memory.h"

#include <cuda.h>

#include <iterator>

#include "core/fields.h"

namespace tilewise::cuda {
namespace {

// A GPU may read all memory of the host on some machines (ATS, HMM).
bool addresses_host(int32_t gpu) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, cudaDevAttrPageableMemoryAccess, gpu) == cudaSuccess && value;
}

// Where memory of a GPU lies. Tensors of a framework often share an allocation, which is then asked for once a call.
class Allocation {
 public:
  explicit Allocation(int32_t gpu) : gpu_(gpu) {}

  // Says yes to what it is sure of.
  bool holds(const void* data) {
    const auto address = reinterpret_cast<CUdeviceptr>(data);
    return address - begin_ < bytes_ || (find(address) && address - begin_ < bytes_);
  }

 private:
  bool find(CUdeviceptr address) {
    // The driver's own question takes half the time of the runtime's.
    static const auto query = driver_function<decltype(cuPointerGetAttributes)>("cuPointerGetAttributes");
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                        CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    int ordinal = -1;
    void* answers[] = {&ordinal, &begin_, &bytes_};
    const bool answered = query(std::size(attributes), attributes, answers, address) == CUDA_SUCCESS;
    if (!answered || ordinal != gpu_) bytes_ = 0;
    return bytes_ > 0;
  }

  int32_t gpu_;
  CUdeviceptr begin_ = 0;
  size_t bytes_ = 0;
};

// Names what is wrong with a pointer that is not surely right.
Status check_pointer(const char* name, const void* data, int32_t gpu) {
  const Current current(gpu);
  if (Status status = current.status(); !status.ok()) return status;
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
  Allocation allocation(problem.device_index);
  Status status;
  const auto check = [&](const char* name, const void* data) {
    if (status.ok() && !allocation.holds(data)) status = check_pointer(name, data, problem.device_index);
  };
  each_tensor(problem, [&](const char* name, const Tensor& tensor, Role) {
    if (has_elements(tensor)) check(name, tensor.data);
  });
  if (launch.workspace) check("exec.workspace", launch.workspace);
  if (launch.fault) check("exec.fault", launch.fault);
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
  cudaError_t error = cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
  if (error == cudaSuccess) error = cudaStreamSynchronize(nullptr);  // copies onto the device may return before
  return status_of(error, "copying %llu bytes to or from GPU %d", static_cast<unsigned long long>(bytes), gpu);
}

}  // namespace tilewise::cuda
