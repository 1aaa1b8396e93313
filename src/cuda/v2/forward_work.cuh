// Which block of rows a thread block works on, and the blocks of keys that it looks at.
#pragma once

#include "cuda/common/device.cuh"
#include "cuda/v2/forward_schedule.h"

namespace tilewise::cuda::v2 {

struct ForwardWork {
  int row_block, head, sequence;

  // Head by head: neighbours read the same keys.
  static TILEWISE_DEVICE ForwardWork in_order(const ForwardSchedule& plan, int index) {
    const int head = index / plan.row_blocks;
    return {index % plan.row_blocks, head % plan.heads, head / plan.heads};
  }
  // Longest rows first within a section of heads, so that the short ones fill what is left at the end.
  static TILEWISE_DEVICE ForwardWork longest_first(const ForwardSchedule& plan, int index) {
    const int of_section = plan.section * plan.row_blocks, section = index / of_section;
    const int width = min(plan.section, plan.all_heads - section * plan.section), place = index - section * of_section;
    const int head = section * plan.section + place % width;
    return {plan.row_blocks - 1 - place / width, head % plan.heads, head / plan.heads};
  }
};

template <class T>
TILEWISE_DEVICE ForwardWork work_at(const ForwardSchedule& plan, int index) {
  return T::kCausal ? ForwardWork::longest_first(plan, index) : ForwardWork::in_order(plan, index);
}

// The key blocks that a block of rows looks at (at least one, so that empty rows come out as zeros), and from which on
// scores are dead.
template <class T>
struct KeyBlocks {
  int end, first_masked;

  TILEWISE_DEVICE KeyBlocks(const ForwardSchedule& plan, int row_block) {
    const int diagonal = row_block * T::kM + plan.diagonal;
    const int keys = T::kCausal ? min(plan.keys, diagonal + T::kM) : plan.keys;
    end = max(1, (keys + T::kN - 1) / T::kN);
    first_masked = max(0, T::kCausal ? min(plan.keys, diagonal + 1) : plan.keys) / T::kN;
  }
};

}  // namespace tilewise::cuda::v2
