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
    constexpr ForwardTile kTile = forward_tile(D, Limit);
    using Causal = Tile<E, D, MaskKind::causal, kTile>;
    static_assert(int64_t{sizeof(SharedStorage<Causal>)} <= bytes_of(Limit));
    return mask == MaskKind::causal ? call(Causal{}) : call(Tile<E, D, MaskKind::none, kTile>{});
  };
  if (limit == SharedMemory::kb227) return with_limit.template operator()<SharedMemory::kb227>();
  if (limit == SharedMemory::kb163) return with_limit.template operator()<SharedMemory::kb163>();
  return with_limit.template operator()<SharedMemory::kb99>();
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
    const ForwardSchedule plan = schedule_of(problem, T::kM);
    // Unequal tiles go to whichever multiprocessor is free, equal ones are dealt out.
    const Grid grid{.blocks = T::kStreams ? std::min(plan.tiles, workers * T::c.blocks) : plan.tiles,
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
