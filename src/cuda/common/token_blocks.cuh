// Blocks of rows, or of keys, of all sequences along one axis. No block spans two sequences.
//
// In a packed tensor only the device knows the lengths. There, sequence b has the blocks from offset / step + b on:
// enough for its tokens wherever they begin, while all sequences together have total / step + batch and not batch times
// the longest one.
#pragma once

#include "core/find_sequence.h"
#include "cuda/common/device.cuh"
#include "cuda/common/search.cuh"

namespace tilewise::cuda {

// Tokens [first, first + step) of a sequence, as far as it has them.
struct TokenBlock {
  int64_t sequence, first;
};

class TokenBlocks {
 public:
  // Of query rows, and of keys.
  TILEWISE_INLINE static TokenBlocks rows(const Problem& p, int64_t step) {
    return {p.cu_seqlens_q, p.batch, p.total_rows, p.max_rows, step};
  }
  TILEWISE_INLINE static TokenBlocks keys(const Problem& p, int64_t step) {
    return {p.cu_seqlens_k, p.batch, p.total_keys, p.max_keys, step};
  }

  TILEWISE_INLINE int64_t count() const {
    if (batch_ == 0) return 0;
    return offsets_ ? total_ / step_ + batch_ : batch_ * ceil_div(longest_, step_);
  }

  TILEWISE_DEVICE TokenBlock find(int64_t block) const {
    if (!offsets_) {
      const int64_t of_sequence = ceil_div(longest_, step_);
      return {block / of_sequence, block % of_sequence * step_};
    }
    const int64_t sequence = last_that_begins_by(block, batch_, [&](int64_t b) { return first_block(b); });
    return {sequence, greater(0, block - first_block(sequence)) * step_};
  }

 private:
  TILEWISE_INLINE TokenBlocks(const Tensor& offsets, int64_t batch, int64_t total, int64_t longest, int64_t step)
      : offsets_(offsets), batch_(batch), total_(total), longest_(longest), step_(step) {}

  TILEWISE_DEVICE int64_t first_block(int64_t b) const { return clamp(number_at(offsets_, b), 0, total_) / step_ + b; }

  const Tensor& offsets_;
  const int64_t batch_, total_, longest_, step_;
};

}  // namespace tilewise::cuda
