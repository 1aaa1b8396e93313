#include "cli/gpu.h"

#include "cli/failure.h"
#include "cli/shape.h"
#include "cli/text.h"

namespace tilewise::cli {

GpuMemory::GpuMemory(int32_t gpu, int64_t bytes, const char* purpose) : gpu_(gpu) {
  check(check_gpu(gpu));
  if (bytes <= 0) return;
  const Status status = cuda_backend()->allocate(gpu, nullptr, static_cast<uint64_t>(bytes), &data_);
  if (status.code == TW_OUT_OF_MEMORY) {
    fail(ExitCode::out_of_memory, "out of memory of GPU {}: {} takes {}", gpu, purpose, size_text(bytes));
  }
  check(status);
  size_ = bytes;
}

GpuMemory::~GpuMemory() {
  if (data_) cuda_backend()->release(gpu_, nullptr, data_);
}

void GpuMemory::upload(const Buffer& from) const {
  if (size_ > 0) check(cuda_backend()->copy(gpu_, data_, from.data(), static_cast<uint64_t>(size_)));
}

void GpuMemory::download(const Buffer& to) const {
  if (size_ > 0) check(cuda_backend()->copy(gpu_, to.data(), data_, static_cast<uint64_t>(size_)));
}

double gpu_milliseconds(int32_t gpu, const std::function<Status()>& enqueue) {
  double milliseconds = 0;
  const auto call = [](void* context) { return (*static_cast<const std::function<Status()>*>(context))(); };
  auto* context = const_cast<void*>(static_cast<const void*>(&enqueue));
  check(cuda_backend()->time(gpu, nullptr, 1, call, context, &milliseconds));
  return milliseconds;
}

}  // namespace tilewise::cli
