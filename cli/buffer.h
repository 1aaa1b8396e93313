// Memory for tensors and workspace: fresh zero pages straight from the system, so that what a run touches can be
// measured and a size that does not fit is refused before anything starts to swap.
#pragma once

#include <cstdint>
#include <utility>

namespace tilewise::cli {

class Buffer {
 public:
  Buffer() = default;
  // Page aligned. Throws Failure(out_of_memory), which names `purpose` and both sizes.
  Buffer(int64_t bytes, const char* purpose);
  Buffer(Buffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Buffer();

  char* data() const { return data_; }
  int64_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  char* data_ = nullptr;
  int64_t size_ = 0;
};

// Bytes that can still be had: of the machine, or of the control group if that is less. INT64_MAX if unknown.
int64_t memory_available();

}  // namespace tilewise::cli
