// Which block of rows a thread block works on, and the blocks of keys that it looks at.
#pragma once

#include "core/find_sequence.h"
#include "cuda/common/device.cuh"
#include "cuda/v2/forward_schedule.h"

namespace tilewise::cuda::v2 {

struct ForwardWork {
  int row_block, head, sequence;

  static TILEWISE_DEVICE ForwardWork of(const ForwardSchedule& plan, int row_block, int head) {
    const int sequence = plan.heads.quotient(head);
    return {row_block, head - sequence * plan.heads.value, sequence};
  }
  // Head by head: neighbours read the same keys.
  static TILEWISE_DEVICE ForwardWork in_order(const ForwardSchedule& plan, int index) {
    const int head = plan.row_blocks.quotient(index);
    return of(plan, index - head * plan.row_blocks.value, head);
  }
  // Head by head, and the longest rows before the shortest: any two in a row are about as much work as any other two.
  static TILEWISE_DEVICE ForwardWork folded(const ForwardSchedule& plan, int index) {
    const int head = plan.row_blocks.quotient(index), place = index - head * plan.row_blocks.value;
    return of(plan, place % 2 ? place / 2 : plan.row_blocks.value - 1 - place / 2, head);
  }
  // Longest rows first within a section of heads, so that the short ones fill what is left at the end.
  static TILEWISE_DEVICE ForwardWork longest_first(const ForwardSchedule& plan, int index) {
    const int of_section = plan.section * plan.row_blocks.value, section = index / of_section;
    const int width = min(plan.section, plan.all_heads - section * plan.section), place = index - section * of_section;
    return of(plan, plan.row_blocks.value - 1 - place / width, section * plan.section + place % width);
  }
};

template <class T>
TILEWISE_DEVICE ForwardWork work_at(const ForwardSchedule& plan, int index) {
  if (!T::kCausal) return ForwardWork::in_order(plan, index);
  return T::kStreams && plan.run > 1 ? ForwardWork::folded(plan, index) : ForwardWork::longest_first(plan, index);
}

// The rows and keys of a tile's sequence, counted in 32 bits.
struct TileLengths {
  int rows, keys;  // the last keys are not counted if no row sees them
  int diagonal;    // row i sees keys up to i + diagonal

  static TILEWISE_DEVICE TileLengths of(const Problem& p, const Sequence& s) {
    const int64_t keys = p.causal && p.top_left ? lesser(s.keys, s.rows) : s.keys;
    const int64_t diagonal = !p.causal ? keys : p.top_left ? 0 : s.keys - s.rows;
    return {static_cast<int>(s.rows), static_cast<int>(keys), static_cast<int>(diagonal)};
  }
};

// The key blocks that a block of rows looks at (at least one, so that empty rows come out as zeros), and from which on
// scores are dead.
template <class T>
struct KeyBlocks {
  int end, first_masked;

  TILEWISE_DEVICE KeyBlocks(const TileLengths& lengths, int row_block) {
    const int diagonal = row_block * T::kM + lengths.diagonal;
    const int keys = T::kCausal ? min(lengths.keys, diagonal + T::kM) : lengths.keys;
    end = max(1, (keys + T::kN - 1) / T::kN);
    first_masked = max(0, T::kCausal ? min(lengths.keys, diagonal + 1) : lengths.keys) / T::kN;
  }
};

}  // namespace tilewise::cuda::v2
