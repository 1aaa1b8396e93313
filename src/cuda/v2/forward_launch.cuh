// The host's side of a translation unit of v2's forward: which kernel, loaded and launched.
#pragma once

#include <algorithm>

#include "cuda/common/launch.cuh"
#include "cuda/v2/forward.cuh"
#include "cuda/v2/forward_general.cuh"
#include "cuda/v2/forward_unit.h"

namespace tilewise::cuda::v2 {

// call(Tile{}) with the tile of these.
template <class E, int D, class Call>
Status with_tile(MaskKind mask, SharedMemory limit, Call call) {
  const auto with_limit = [&]<SharedMemory Limit>() {
    const auto with_mask = [&]<MaskKind Mask>() {
      using T = Tile<E, D, Mask, forward_tile(D, Mask, Limit)>;
      static_assert(int64_t{sizeof(SharedStorage<T>)} <= bytes_of(Limit));
      return call(T{});
    };
    if (mask == MaskKind::lengths) return with_mask.template operator()<MaskKind::lengths>();
    if (mask == MaskKind::causal) return with_mask.template operator()<MaskKind::causal>();
    return with_mask.template operator()<MaskKind::none>();
  };
  if (limit == SharedMemory::kb227) return with_limit.template operator()<SharedMemory::kb227>();
  if (limit == SharedMemory::kb163) return with_limit.template operator()<SharedMemory::kb163>();
  return with_limit.template operator()<SharedMemory::kb99>();
}

// Whether pairs of tiles that are dealt out to so many thread blocks keep nearly all of them busy to the end: otherwise
// the hardware's way, a tile for whoever is free, is better.
inline bool deals_evenly(int tiles, int blocks) {
  const int64_t pairs = ceil_div(tiles, 2), places = ceil_div(pairs, blocks) * blocks;
  return (places - pairs) * 8 <= places;
}

template <class E, int D>
Status ForwardUnit<E, D>::load(MaskKind mask, SharedMemory limit) {
  return with_tile<E, D>(mask, limit, [&](auto tile) {
    using T = decltype(tile);
    return cuda::load("cuda.v2.forward", forward_sm80<T>, sizeof(SharedStorage<T>));
  });
}

template <class E, int D>
Status ForwardUnit<E, D>::launch(MaskKind mask, SharedMemory limit, const Problem& problem, int workers, void* stream) {
  return with_tile<E, D>(mask, limit, [&](auto tile) {
    using T = decltype(tile);
    ForwardSchedule plan = schedule_of(problem, T::kM);
    const int most = workers * T::c.blocks;
    const bool streams =
        T::kStreams &&
        (problem.sm_margin > 0 || (plan.keys <= T::c.stream_keys && (!T::kCausal || deals_evenly(plan.tiles, most))));
    plan.run = streams && T::kCausal ? 2 : 1;
    const Grid grid{.blocks = streams ? std::min(static_cast<int>(ceil_div(plan.tiles, plan.run)), most) : plan.tiles,
                    .threads = T::kThreads,
                    .shared_bytes = sizeof(SharedStorage<T>)};
    return cuda::launch("cuda.v2.forward", forward_sm80<T>, grid, stream, problem, plan);
  });
}

template <class E, int D>
Status GeneralForwardUnit<E, D>::load() {
  using T = GeneralTile<E, D>;
  static_assert(int64_t{sizeof(GeneralStorage<T>)} <= bytes_of(SharedMemory::kb99));
  return cuda::load("cuda.v2.forward", forward_general_sm80<T>, sizeof(GeneralStorage<T>));
}

template <class E, int D>
Status GeneralForwardUnit<E, D>::launch(const Problem& problem, void* stream) {
  using T = GeneralTile<E, D>;
  const ForwardSchedule plan = schedule_of(problem, T::kM);
  const Grid grid{.blocks = plan.tiles, .threads = T::kThreads, .shared_bytes = sizeof(GeneralStorage<T>)};
  return cuda::launch("cuda.v2.forward", forward_general_sm80<T>, grid, stream, problem, plan);
}

}  // namespace tilewise::cuda::v2
