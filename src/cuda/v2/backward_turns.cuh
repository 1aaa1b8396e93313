// In order: blocks of keys add to a warp's part of dQ one after the other. The thread blocks of those before have been
// started before, so that no wait is for one that has not.
#pragma once

#include "cuda/v2/backward_walk.cuh"

namespace tilewise::cuda::v2 {

// The number of this thread block's block of keys: in order, how many have been started before. Call with all threads.
TILEWISE_DEVICE int draw_key_block(const BackwardWork& work, int& shared_ticket) {
  if (work.in_order) {
    if (threadIdx.x == 0) shared_ticket = atomicAdd(work.ticket, 1);
    __syncthreads();
  }
  return ptx::uniform(work.in_order ? shared_ticket : static_cast<int>(blockIdx.x));
}

template <class T>
struct Turns {
  const BackwardWork& work;
  const int work_row, warp, lane;  // work_row: of row 0 of head 0

  TILEWISE_DEVICE int* of(const QueryBlock& b) const {
    const int64_t row = b.head * work.rows + work_row + b.m * T::kQueries;
    return work.turns + row / kFragmentRows * kMostWarps + warp;
  }
  TILEWISE_DEVICE int look(const QueryBlock& b) const { return ptx::load_relaxed(of(b)); }

  // `seen`: the turn a while ago. Where bad offsets let sequences overlap, both pass the turn on, and a wait for
  // exactly this one would never end. Each lane has seen the turn itself, and its additions come after those before it;
  // an acquiring load at each look would say the same, but is waited for at once (3% of a pass in order on an H200).
  TILEWISE_DEVICE void await(const QueryBlock& b, int mine, int seen) const {
    while (!__all_sync(kAllLanes, seen >= mine)) seen = look(b);
    ptx::fence_acquire();
  }
  TILEWISE_DEVICE void pass(const QueryBlock& b) const {
    __syncwarp();
    if (lane == 0) ptx::add_release(of(b), 1);
  }
};

}  // namespace tilewise::cuda::v2
