// In order: blocks of keys add to a warp's part of dQ one after the other. The thread blocks of those before have been
// started before, so that no wait is for one that has not.
#pragma once

#include "cuda/v2/backward_walk.cuh"

namespace tilewise::cuda::v2 {

template <class T>
struct Turns {
  const BackwardWork& work;
  const int work_row, warp, lane;  // work_row: of row 0 of head 0

  TILEWISE_DEVICE int* of(const QueryBlock& b) const {
    const int64_t row = b.head * work.rows + work_row + b.m * T::kQueries;
    return work.turns + row / kFragmentRows * kMostWarps + warp;
  }
  TILEWISE_DEVICE int look(const QueryBlock& b) const { return ptx::load_relaxed(of(b)); }

  // `seen`: the turn a while ago. Additions meet in L2, where those before are done once the turn is passed: no read
  // depends on it, so that it need not acquire. Where bad offsets let sequences overlap, both pass the turn on, and a
  // wait for exactly this one would never end.
  TILEWISE_DEVICE void await(const QueryBlock& b, int mine, int seen) const {
    while (ptx::uniform(seen) < mine) seen = look(b);
  }
  TILEWISE_DEVICE void pass(const QueryBlock& b) const {
    __syncwarp();
    if (lane == 0) ptx::add_release(of(b), 1);
  }
};

}  // namespace tilewise::cuda::v2
