// The host's side of a translation unit of v2's backward: which kernel, loaded and launched.
#pragma once

#include "cuda/v2/backward.cuh"

namespace tilewise::cuda::v2 {

// call(Shape{}) with the tile and the kind of mask as a type. Kernels that need many registers for a pair have the
// small tile, and serve whatever the small tile is asked for beyond simple masks.
template <class E, int D, class Call>
Status with_shape(const BackwardTile& tile, BackwardMask mask, Call call) {
  constexpr BackwardTile kLarge = backward_tile(D, int64_t{227} << 10), kSmall = backward_tile(D, int64_t{99} << 10);
  constexpr BackwardTile kLargeOfRanges = backward_tile(D, int64_t{227} << 10, false);
  const bool large = tile.shared_kb == kLarge.shared_kb;
  if (mask == BackwardMask::general) return call(BackwardShape<E, kSmall, BackwardMask::general>{});
  if (mask == BackwardMask::ranges) return call(BackwardShape<E, kLargeOfRanges, BackwardMask::ranges>{});
  if (large) return call(BackwardShape<E, kLarge, BackwardMask::simple>{});
  return call(BackwardShape<E, kSmall, BackwardMask::simple>{});
}

template <class E, int D>
Status BackwardUnit<E, D>::load(const Problem& p, const BackwardTile& tile, BackwardMask mask) {
  return load_passes<E, D>(p, [&] {
    return with_shape<E, D>(tile, mask, [](auto shape) {
      using T = decltype(shape);
      return cuda::load("v2's backward", backward<T>, sizeof(BackwardStorage<T>));
    });
  });
}

template <class E, int D>
Status BackwardUnit<E, D>::launch(const Problem& p, const BackwardTile& tile, BackwardMask mask,
                                  const BackwardWork& work, void* stream) {
  return launch_passes<E, D>(p, work, stream, [&] {
    return with_shape<E, D>(tile, mask, [&](auto shape) {
      using T = decltype(shape);
      const Grid keys{.blocks = p.batch * p.heads_kv * work.key_blocks,
                      .threads = T::kThreads,
                      .shared_bytes = sizeof(BackwardStorage<T>)};
      return cuda::launch("v2's backward", backward<T>, keys, stream, p, work);
    });
  });
}

}  // namespace tilewise::cuda::v2
