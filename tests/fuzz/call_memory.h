// Memory for the tensors of one call: a block of exactly a tensor's reach, so that ASan sees one element too many; or a
// place in a block that several share, so that outputs may overlap.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/fields.h"
#include "fuzz/bytes.h"
#include "fuzz/require.h"

namespace tilewise::fuzz {

class CallMemory {
 public:
  explicit CallMemory(Bytes& bytes) : bytes_(bytes), numbers_(bytes.take<uint64_t>() | 1) {}

  // Gives a tensor memory. False if it has none, being absurd or large; it is fit for a plan then.
  bool place(tw_tensor& tensor, int axes, bool may_be_written) {
    tensor.data = nullptr;
    if (tensor.dtype == TW_NONE) return true;
    Reach reach;
    if (!find_reach(tensor, axes, reach)) return false;
    if (reach.elements == 0) return true;
    const int64_t size = size_of(static_cast<Type>(tensor.dtype)), bytes = reach.elements * size;
    Block& block = bytes_.below(16) == 1 && bytes <= kShared ? shared_block() : new_block(bytes, tensor.dtype);
    block.written |= may_be_written;
    const int64_t room = (block.bytes - bytes) / size, skipped = room > 0 ? bytes_.below(room + 1) : 0;
    tensor.data = block.memory.get() + (skipped - reach.low) * size;
    return true;
  }

  void remember() {
    for (Block& block : blocks_) block.before.assign(block.memory.get(), block.memory.get() + block.bytes);
  }
  void require_unchanged(bool outputs_too) const {
    for (const Block& block : blocks_) {
      if (block.written && !outputs_too) continue;
      require(std::memcmp(block.before.data(), block.memory.get(), block.before.size()) == 0,
              outputs_too ? "outputs are untouched after an error" : "inputs are never written");
    }
  }

 private:
  static constexpr int64_t kMostElements = 4096, kShared = 1024;

  struct Reach {
    int64_t low = 0, elements = 1;
  };
  struct Block {
    std::unique_ptr<char[]> memory;
    int64_t bytes;
    bool written = false;
    std::vector<char> before;
  };

  static bool find_reach(const tw_tensor& tensor, int axes, Reach& reach) {
    if (tensor.dtype < TW_NONE || tensor.dtype > TW_I64 || size_of(static_cast<Type>(tensor.dtype)) == 0) return false;
    int64_t count = 1, high = 0;
    for (int axis = 0; axis < axes; ++axis) {
      const int64_t extent = tensor.shape[axis], stride = tensor.stride[axis];
      if (extent < 0 || extent > kMostElements || stride > kMostElements || stride < -kMostElements) return false;
      count *= extent;
      if (count > kMostElements) return false;
      (stride < 0 ? reach.low : high) += stride * (extent - 1);
      if (high - reach.low > kMostElements) return false;
    }
    reach.elements = count == 0 ? 0 : high - reach.low + 1;
    return true;
  }

  Block& shared_block() {
    if (shared_ < 0) {
      new_block(kShared, TW_F32);
      shared_ = static_cast<int64_t>(blocks_.size()) - 1;
    }
    return blocks_[static_cast<size_t>(shared_)];
  }

  Block& new_block(int64_t bytes, int32_t dtype) {
    blocks_.push_back({std::unique_ptr<char[]>(new char[static_cast<size_t>(bytes)]), bytes, false, {}});
    fill(blocks_.back(), dtype);
    return blocks_.back();
  }

  // Lengths and tables: small numbers from the input. Everything else: any bits at all.
  void fill(const Block& block, int32_t dtype) {
    if (dtype == TW_I32) {
      for (int64_t i = 0; i + 4 <= block.bytes; i += 4) {
        const int32_t number = i < kNumbersFromInput ? bytes_.take<int8_t>() : 0;
        std::memcpy(block.memory.get() + i, &number, sizeof number);
      }
      return;
    }
    const uint64_t bits = dtype == TW_BOOL ? 0x0101010101010101u : ~uint64_t{0};
    for (int64_t i = 0; i < block.bytes; i += 8) {
      numbers_ = numbers_ * 6364136223846793005u + 1442695040888963407u;
      const uint64_t word = (numbers_ ^ numbers_ >> 32) & bits;
      std::memcpy(block.memory.get() + i, &word, static_cast<size_t>(std::min<int64_t>(8, block.bytes - i)));
    }
  }

  static constexpr int64_t kNumbersFromInput = 64;

  Bytes& bytes_;
  uint64_t numbers_;
  int64_t shared_ = -1;
  std::vector<Block> blocks_;
};

}  // namespace tilewise::fuzz
