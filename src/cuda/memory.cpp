#include "cuda/memory.h"

#include <cuda.h>

#include <algorithm>
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

// Names what is wrong with a pointer that is not surely right. `field` is what a message adds to the name.
Status check_pointer(const char* name, const char* field, const void* data, int32_t gpu) {
  const Current current(gpu);
  if (Status status = current.status(); !status.ok()) return status;
  cudaPointerAttributes attributes{};
  const cudaError_t error = cudaPointerGetAttributes(&attributes, data);
  if (error != cudaSuccess) return status_of(error, "looking at %s%s", name, field);
  if (attributes.type == cudaMemoryTypeDevice && attributes.device != gpu) {
    return failure(TW_INVALID_ARGUMENT, "%s%s is memory of GPU %d, but device_index is %d", name, field,
                   attributes.device, gpu);
  }
  if (attributes.type == cudaMemoryTypeUnregistered && !addresses_host(gpu)) {
    return failure(TW_INVALID_ARGUMENT, "%s%s is %p: GPU %d cannot address it; it must be memory of the GPU", name,
                   field, data, gpu);
  }
  return {};
}

// A launch onto a stream of another GPU would run there, where the call's memory may not be addressed. A stream that is
// captured may not be asked.
Status check_stream(void* stream, int32_t gpu) {
  Text why_none;
  const auto queue = static_cast<cudaStream_t>(stream);
  const bool is_of_any = !queue || queue == cudaStreamLegacy || queue == cudaStreamPerThread;
  if (is_of_any || gpu_count(why_none) < 2) return {};
  const Current current(gpu);
  if (Status status = current.status(); !status.ok()) return status;
  int owner = gpu;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaError_t error = cudaStreamIsCapturing(queue, &capture);
  if (error == cudaSuccess && capture == cudaStreamCaptureStatusNone) error = cudaStreamGetDevice(queue, &owner);
  if (error != cudaSuccess) return status_of(error, "looking at exec.stream");
  if (owner == gpu) return {};
  return failure(TW_INVALID_ARGUMENT, "exec.stream is a stream of GPU %d, but device_index is %d", owner, gpu);
}

// Keeps what is wrong with the first bad one of a call's pointers.
class Pointers {
 public:
  explicit Pointers(int32_t gpu) : gpu_(gpu), allocation_(gpu) {}

  void check(const char* name, const Tensor& tensor) {
    const bool is_empty = std::find(tensor.shape, tensor.shape + 4, 0) != tensor.shape + 4;
    if (!is_empty) check(name, ".data", tensor.data);
  }
  void check(const char* name, const char* field, const void* data) {
    if (status_.ok() && !allocation_.holds(data)) status_ = check_pointer(name, field, data, gpu_);
  }
  const Status& status() const { return status_; }

 private:
  int32_t gpu_;
  Allocation allocation_;
  Status status_;
};

}  // namespace

Status check_memory(const Problem& problem, const Launch& launch) {
  if (Status status = check_stream(launch.stream, problem.device_index); !status.ok()) return status;
  Pointers pointers(problem.device_index);
  each_tensor(problem, [&](const char* name, const Tensor& tensor, Role) { pointers.check(name, tensor); });
  if (launch.workspace) pointers.check("exec", ".workspace", launch.workspace);
  if (launch.fault) pointers.check("exec", ".fault", launch.fault);
  return pointers.status();
}

Status check_memory(const Merge& merge, int32_t gpu, void* stream) {
  if (Status status = check_stream(stream, gpu); !status.ok()) return status;
  Pointers pointers(gpu);
  pointers.check("out", merge.out);
  if (merge.lse) pointers.check("lse", merge.lse);
  if (merge.parts > 0) {
    pointers.check("out_parts", merge.out_parts);
    pointers.check("lse_parts", merge.lse_parts);
  }
  return pointers.status();
}

Status allocate(int32_t gpu, void* stream, uint64_t bytes, void** memory) {
  if (Status status = check_stream(stream, gpu); !status.ok()) return status;
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
