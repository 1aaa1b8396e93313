#include "cases/device_copy.h"

#include <algorithm>
#include <cstring>

#include "core/backend.h"
#include "core/fields.h"

namespace tilewise::cases {
namespace {

constexpr char kPoison = '\xff';
constexpr int64_t kGuard = 256, kAlignment = 256;
constexpr int64_t kHostAlignment = 16;  // what malloc promises: kept, so that what is unaligned stays so

int64_t round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

// Byte offsets from the first element to the lowest and past the highest; equal if there are no elements.
struct Reach {
  int64_t begin = 0, end = 0;

  explicit Reach(const Tensor& t) {
    for (int axis = 0; axis < 4; ++axis) {
      if (t.shape[axis] == 0) {
        begin = end = 0;
        return;
      }
      (t.stride[axis] < 0 ? begin : end) += t.stride[axis] * (t.shape[axis] - 1);
    }
    begin *= size_of(t.type);
    end = (end + 1) * size_of(t.type);
  }
  bool empty() const { return begin == end; }
};

Status status_of(const tw_fault& fault) {
  if (fault.code == 0) return {};
  return failure(TW_INVALID_ARGUMENT, "fault %d of sequence %d: element %d is %d", fault.code, fault.sequence,
                 fault.index, fault.value);
}

}  // namespace

DeviceCopy::DeviceCopy(Problem& problem, uint64_t workspace_bytes)
    : gpu_(problem.device_index), workspace_bytes_(workspace_bytes) {
  find_blocks(problem);
  lay_out();
  void* memory = nullptr;
  status_ = cuda_backend()->allocate(gpu_, nullptr, image_.size(), &memory);
  device_ = static_cast<char*>(memory);
  if (status_.ok()) status_ = cuda_backend()->copy(gpu_, device_, image_.data(), image_.size());
  if (status_.ok()) redirect(problem);
}

DeviceCopy::~DeviceCopy() {
  if (device_) cuda_backend()->release(gpu_, nullptr, device_);
}

void DeviceCopy::find_blocks(const Problem& problem) {
  blocks_ = {{reinterpret_cast<char*>(&fault_), sizeof fault_, 0, true}};
  std::vector<Block> found;
  each_tensor(problem, [&](const char*, const Tensor& tensor, Role role) {
    const Reach reach(tensor);
    if (reach.empty()) return;
    found.push_back({tensor.data + reach.begin, reach.end - reach.begin, 0, is_written(role, problem.pass)});
  });
  std::sort(found.begin(), found.end(), [](const Block& a, const Block& b) { return a.host < b.host; });
  for (const Block& block : found) {
    Block& last = blocks_.back();
    if (blocks_.size() > 1 && block.host < last.host + last.bytes) {
      last.bytes = std::max(last.bytes, block.host + block.bytes - last.host);
      last.written |= block.written;
    } else {
      blocks_.push_back(block);
    }
  }
}

void DeviceCopy::lay_out() {
  int64_t end = 0;
  for (Block& block : blocks_) {
    const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(block.host));
    block.place = round_up(end + kGuard, kAlignment) + address % kHostAlignment;
    end = block.place + block.bytes;
  }
  workspace_ = static_cast<uint64_t>(round_up(end + kGuard, kAlignment));
  image_.assign(workspace_ + workspace_bytes_ + kGuard, kPoison);
  for (const Block& block : blocks_) std::memcpy(image_.data() + block.place, block.host, block.bytes);
}

void DeviceCopy::redirect(Problem& problem) const {
  const auto move = [&](Tensor& tensor) {
    if (!tensor || Reach(tensor).empty()) return;
    const char* lowest = tensor.data + Reach(tensor).begin;
    for (const Block& block : blocks_) {
      if (lowest < block.host || lowest >= block.host + block.bytes) continue;
      tensor.data = device_ + block.place + (tensor.data - block.host);
      return;
    }
  };
  for (const auto& field : kProblemFields) move(problem.*field.tensor);
  for (const auto& field : kGradFields) move(problem.*field.tensor);
}

Status DeviceCopy::fetch() {
  std::vector<char> after(image_.size());
  Status status = cuda_backend()->wait(gpu_, nullptr);
  if (status.ok()) status = cuda_backend()->copy(gpu_, after.data(), device_, after.size());
  if (!status.ok()) return status;
  const auto accept = [&](int64_t place, int64_t bytes) {
    std::memcpy(image_.data() + place, after.data() + place, bytes);
  };
  accept(static_cast<int64_t>(workspace_), static_cast<int64_t>(workspace_bytes_));
  for (const Block& block : blocks_) {
    if (!block.written) continue;
    std::memcpy(block.host, after.data() + block.place, block.bytes);
    accept(block.place, block.bytes);
  }
  const auto [was, is] = std::mismatch(image_.begin(), image_.end(), after.begin());
  if (was == image_.end()) return status_of(fault_);
  const int64_t place = was - image_.begin();
  const bool input = std::any_of(blocks_.begin(), blocks_.end(), [&](const Block& block) {
    return place >= block.place && place < block.place + block.bytes;
  });
  const bool after_all = place >= static_cast<int64_t>(workspace_);
  return failure(TW_INTERNAL, "%s written",
                 input       ? "an input was"
                 : after_all ? "bytes past the workspace were"
                             : "bytes around a tensor were");
}

}  // namespace tilewise::cases
