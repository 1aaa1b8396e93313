#include "cases/device_copy.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/backend.h"
#include "core/fields.h"
#include "core/numbers.h"

namespace tilewise::cases {
namespace {

constexpr char kPoison = '\xff';
constexpr int64_t kGuard = 256, kAlignment = 256;
constexpr int64_t kHostAlignment = 16;  // what malloc promises: kept, so that what is unaligned stays so

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

int64_t bytes_of(const Tensor& t) { return t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3] * size_of(t.type); }

int64_t misalignment(const char* host) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(host) % kHostAlignment);
}

bool apart() {
  const char* asked = std::getenv("TILEWISE_EXACT_ALLOCATIONS");
  return asked && *asked;
}

Status status_of(const tw_fault& fault) {
  if (fault.code == 0) return {};
  return failure(TW_INVALID_ARGUMENT, "fault %d of sequence %d: element %d is %d", fault.code, fault.sequence,
                 fault.index, fault.value);
}

}  // namespace

DeviceCopy::DeviceCopy(Problem& problem, uint64_t workspace_bytes)
    : gpu_(problem.device_index), workspace_bytes_(workspace_bytes) {
  find_blocks(problem);
  const bool reads_results = problem.accumulate || problem.prior_out;
  status_ = apart() ? place_apart(reads_results) : place_together();
  if (status_.ok()) redirect(problem);
}

DeviceCopy::~DeviceCopy() {
  for (char* memory : allocations_) cuda_backend()->release(gpu_, nullptr, memory);
}

void DeviceCopy::find_blocks(const Problem& problem) {
  blocks_ = {{reinterpret_cast<char*>(&fault_), sizeof fault_, true, false}};
  std::vector<Block> found;
  each_tensor(problem, [&](const char*, const Tensor& tensor, Role role) {
    const Reach reach(tensor);
    if (reach.empty()) return;
    const int64_t bytes = reach.end - reach.begin;
    found.push_back({tensor.data + reach.begin, bytes, is_written(role, problem.pass), bytes == bytes_of(tensor)});
  });
  std::sort(found.begin(), found.end(), [](const Block& a, const Block& b) { return a.host < b.host; });
  for (const Block& block : found) {
    Block& last = blocks_.back();
    if (blocks_.size() > 1 && block.host < last.host + last.bytes) {
      last.bytes = std::max(last.bytes, block.host + block.bytes - last.host);
      last.written |= block.written, last.gapless = false;
    } else {
      blocks_.push_back(block);
    }
  }
}

Status DeviceCopy::allocate(uint64_t bytes, char*& memory) {
  void* place = nullptr;
  const Status status = cuda_backend()->allocate(gpu_, nullptr, bytes, &place);
  memory = static_cast<char*>(place);
  if (status.ok()) allocations_.push_back(memory);
  return status;
}

Status DeviceCopy::place_together() {
  int64_t end = 0;
  for (Block& block : blocks_) {
    block.place = round_up(end + kGuard, kAlignment) + misalignment(block.host);
    end = block.place + block.bytes;
  }
  workspace_place_ = round_up(end + kGuard, kAlignment);
  image_.assign(static_cast<uint64_t>(workspace_place_) + workspace_bytes_ + kGuard, kPoison);
  for (const Block& block : blocks_) std::memcpy(image_.data() + block.place, block.host, block.bytes);
  char* memory = nullptr;
  if (Status status = allocate(image_.size(), memory); !status.ok()) return status;
  for (Block& block : blocks_) block.device = memory + block.place;
  workspace_ = memory + workspace_place_;
  return cuda_backend()->copy(gpu_, memory, image_.data(), image_.size());
}

Status DeviceCopy::place_apart(bool reads_results) {
  Status status;
  for (Block& block : blocks_) {
    const int64_t shift = misalignment(block.host);
    if (status.ok()) status = allocate(static_cast<uint64_t>(shift + block.bytes), block.device);
    if (!status.ok()) return status;
    block.device += shift;
    const bool is_read = !block.written || reads_results || !block.gapless;  // gaps are compared afterwards
    if (is_read) status = cuda_backend()->copy(gpu_, block.device, block.host, static_cast<uint64_t>(block.bytes));
  }
  if (status.ok() && workspace_bytes_ > 0) status = allocate(workspace_bytes_, workspace_);
  return status;
}

void DeviceCopy::redirect(Problem& problem) const {
  const auto move = [&](Tensor& tensor) {
    if (!tensor || Reach(tensor).empty()) return;
    const char* lowest = tensor.data + Reach(tensor).begin;
    for (const Block& block : blocks_) {
      if (lowest < block.host || lowest >= block.host + block.bytes) continue;
      tensor.data = block.device + (tensor.data - block.host);
      return;
    }
  };
  for (const auto& field : kProblemFields) move(problem.*field.tensor);
  for (const auto& field : kGradFields) move(problem.*field.tensor);
}

Status DeviceCopy::fetch() {
  std::vector<char> after(image_.size());
  Status status = cuda_backend()->wait(gpu_, nullptr);
  if (status.ok() && !image_.empty()) {
    status = cuda_backend()->copy(gpu_, after.data(), blocks_[0].device - blocks_[0].place, after.size());
  }
  for (const Block& block : blocks_) {
    if (!status.ok() || !block.written) continue;
    if (image_.empty()) {
      status = cuda_backend()->copy(gpu_, block.host, block.device, static_cast<uint64_t>(block.bytes));
    } else {
      std::memcpy(block.host, after.data() + block.place, static_cast<size_t>(block.bytes));
    }
  }
  if (status.ok() && !image_.empty()) status = compare_with_image(after);
  return status.ok() ? status_of(fault_) : status;
}

Status DeviceCopy::compare_with_image(const std::vector<char>& after) {
  const auto accept = [&](int64_t place, uint64_t bytes) {
    std::memcpy(image_.data() + place, after.data() + place, bytes);
  };
  accept(workspace_place_, workspace_bytes_);
  for (const Block& block : blocks_)
    if (block.written) accept(block.place, static_cast<uint64_t>(block.bytes));
  const auto [was, is] = std::mismatch(image_.begin(), image_.end(), after.begin());
  if (was == image_.end()) return {};
  const int64_t place = was - image_.begin();
  const bool input = std::any_of(blocks_.begin(), blocks_.end(), [&](const Block& block) {
    return place >= block.place && place < block.place + block.bytes;
  });
  const char* what = input                       ? "an input was"
                     : place >= workspace_place_ ? "bytes past the workspace were"
                                                 : "bytes around a tensor were";
  return failure(TW_INTERNAL, "%s written", what);
}

}  // namespace tilewise::cases
