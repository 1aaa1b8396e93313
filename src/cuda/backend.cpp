// The door of libtilewise_cuda.so.
#include "core/backend.h"

#include "core/build.h"
#include "cuda/gpu.h"
#include "cuda/kernels.h"
#include "cuda/memory.h"
#include "cuda/merge.h"
#include "cuda/sequences.h"

namespace tilewise::cuda {
namespace {

Status run(const Kernel& kernel, const Problem& problem, const Settings& settings, const Launch& launch) {
  const Current current(problem.device_index);
  Status status = current.status();
  if (status.ok() && launch.fault) status = check_lengths(problem, launch);
  if (status.ok()) status = clear_unowned(problem, launch);
  if (status.ok()) status = kernel.launch(problem, settings, launch);
  return status;
}

Status load(const Kernel& kernel, const Problem& problem, const Settings& settings) {
  const Current current(problem.device_index);
  Status status = current.status();
  if (status.ok()) status = kernel.load(problem, settings);
  return status;
}

Status merge_parts(const Merge& parts, int32_t gpu, void* stream) {
  const Current current(gpu);
  Status status = current.status();
  if (status.ok()) status = check_memory(parts, gpu, stream);
  if (status.ok()) status = merge(parts, stream);
  return status;
}

Status wait(int32_t gpu, void* stream) {
  const Current current(gpu);
  if (Status status = current.status(); !status.ok()) return status;
  return status_of(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "waiting for a stream of GPU %d", gpu);
}

struct Events {
  cudaEvent_t begin = nullptr, end = nullptr;

  cudaError_t create() {
    const cudaError_t error = cudaEventCreate(&begin);
    return error != cudaSuccess ? error : cudaEventCreate(&end);
  }
  ~Events() {
    if (begin) (void)cudaEventDestroy(begin);
    if (end) (void)cudaEventDestroy(end);
  }
};

Status time(int32_t gpu, void* stream, int64_t count, Status (*enqueue)(void* context), void* context,
            double* milliseconds) {
  const Current current(gpu);
  Events events;
  const auto queue = static_cast<cudaStream_t>(stream);
  Status status = current.status();
  if (status.ok()) status = status_of(events.create(), "creating events");
  if (status.ok()) status = status_of(cudaEventRecord(events.begin, queue), "recording an event");
  for (int64_t i = 0; status.ok() && i < count; ++i) status = enqueue(context);
  if (status.ok()) status = status_of(cudaEventRecord(events.end, queue), "recording an event");
  if (status.ok()) status = status_of(cudaEventSynchronize(events.end), "waiting for GPU %d", gpu);
  float elapsed = 0;
  if (status.ok()) status = status_of(cudaEventElapsedTime(&elapsed, events.begin, events.end), "reading events");
  *milliseconds = elapsed;
  return status;
}

}  // namespace
}  // namespace tilewise::cuda

extern "C" __attribute__((visibility("default"))) const tilewise::Backend* tilewise_cuda_backend() {
  using namespace tilewise;
  static const Backend backend = {.build = kBuild,
                                  .kernels = cuda::kernels().data(),
                                  .kernel_count = static_cast<int64_t>(cuda::kernels().size()),
                                  .gpu_count = cuda::gpu_count,
                                  .read_gpu = cuda::read_gpu,
                                  .check_memory = cuda::check_memory,
                                  .run = cuda::run,
                                  .load = cuda::load,
                                  .merge = cuda::merge_parts,
                                  .allocate = cuda::allocate,
                                  .release = cuda::release,
                                  .copy = cuda::copy,
                                  .wait = cuda::wait,
                                  .time = cuda::time};
  return &backend;
}
