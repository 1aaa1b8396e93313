// The GPUs of this process, and what CUDA answers as a Status. Host code.
#pragma once

#include <cuda_runtime_api.h>

#include "core/backend.h"

namespace tilewise::cuda {

inline constexpr int kMostGpus = 64;

// How many GPUs there are; if none, why.
int32_t gpu_count(Text& why_none);
// Read once in a process. `index` is below gpu_count.
Status read_gpu(int32_t index, Gpu& gpu);

// A kernel's runs_on: machine code or PTX of this library runs on compute capability 8.0 and later.
bool needs_sm80(int32_t index, Text& why_not);

// TW_OUT_OF_MEMORY or TW_DEVICE_ERROR with what was tried and CUDA's own words. Leaves no error behind in CUDA.
[[gnu::format(printf, 2, 3)]] Status status_of(cudaError_t error, const char* tried, ...);

// A function of the driver, by the name and type that <cuda.h> gives it. It has been there since CUDA 12.0, and the
// runtime takes no driver that is older.
void* find_driver_function(const char* name);
template <class Function>
Function* driver_function(const char* name) {
  return reinterpret_cast<Function*>(find_driver_function(name));
}

// Makes a GPU current for the calling thread until it goes. By the driver's stack of contexts: cudaSetDevice would make
// a context on the GPU that it goes back to.
class Current {
 public:
  explicit Current(int32_t gpu);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

  Status status() const { return status_of(error_, "making GPU %d current", gpu_); }

 private:
  int32_t gpu_;
  bool is_pushed_ = false;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace tilewise::cuda
