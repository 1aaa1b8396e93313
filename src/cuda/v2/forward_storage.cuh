// The tile of v2's fast forward kernels as their code sees it, and what it has in shared memory.
#pragma once

#include <type_traits>

#include "cuda/ptx/sm80.cuh"
#include "cuda/v2/forward_tiles.h"
#include "cuda/v2/forward_work.cuh"

namespace tilewise::cuda::v2 {

template <class E, int D, MaskKind Mask, ForwardTile Choice>
struct Tile {
  using Element = E;
  static constexpr ForwardTile c = Choice;
  static constexpr int kHeadDim = D, kWarps = c.warps, kThreads = 32 * kWarps, kSplit = c.split;
  static constexpr int kM = c.rows(), kN = c.keys, kOwnKeys = kN / kSplit, kOwnCols = D / kSplit;
  static constexpr int kPitch = D + 8;  // rows 16 bytes apart in the banks: no conflicts, every offset an immediate
  static constexpr bool kLengths = Mask == MaskKind::lengths, kCausal = Mask != MaskKind::none;
  static constexpr bool kStreams = Choice.stream_keys > 0 && !kLengths;  // see ForwardTile
};

template <class T>
struct PairStorage {  // what warps that share rows tell each other
  alignas(16) typename T::Element p[T::kM][T::kN + 8];
  float row[T::kWarps][32];
};
struct Nothing {};

template <class T>
struct SharedStorage {
  struct Stage {
    typename T::Element k[T::kN][T::kPitch], v[T::kN][T::kPitch];
  };
  typename T::Element q[T::kM][T::kPitch];
  Stage stage[T::c.stages];
  ptx::Barrier k_full[T::c.stages], k_free[T::c.stages], v_full[T::c.stages], v_free[T::c.stages];
  float shifts[T::kThreads][4];  // of far rows
  std::conditional_t<(T::kSplit > 1), PairStorage<T>, Nothing> pair;
  Sequence sequence;  // where sequences have lengths of their own
  TileLengths lengths;
  ForwardWork work[T::kWarps];  // the tile at hand of a warp
};

}  // namespace tilewise::cuda::v2
