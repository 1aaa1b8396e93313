// A GPU as the commands see it: memory for tensors and workspace, copies, times.
#pragma once

#include <functional>
#include <utility>

#include "cli/buffer.h"
#include "core/backend.h"

namespace tilewise::cli {

class GpuMemory {
 public:
  GpuMemory() = default;
  // Throws Failure(out_of_memory), which names `purpose`.
  GpuMemory(int32_t gpu, int64_t bytes, const char* purpose);
  GpuMemory(GpuMemory&& other) noexcept
      : gpu_(other.gpu_), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  GpuMemory& operator=(GpuMemory&& other) noexcept {
    std::swap(gpu_, other.gpu_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~GpuMemory();

  char* data() const { return static_cast<char*>(data_); }
  int64_t size() const { return size_; }
  void upload(const Buffer& from) const;  // of the same size
  void download(const Buffer& to) const;

 private:
  int32_t gpu_ = 0;
  void* data_ = nullptr;
  int64_t size_ = 0;
};

// Milliseconds on the GPU of one call of `enqueue`, which puts work onto its default stream.
double gpu_milliseconds(int32_t gpu, const std::function<Status()>& enqueue);

}  // namespace tilewise::cli
