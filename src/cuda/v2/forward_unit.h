// The doors of the translation units that hold v2's forward kernels: one for each element type and head size.
#pragma once

#include "core/kernel.h"
#include "cuda/v2/forward_tiles.h"

namespace tilewise::cuda::v2 {

// E: element type of 16 bits, D: head size.
template <class E, int D>
struct ForwardUnit {
  static Status load(MaskKind mask, SharedMemory limit);
  static Status launch(MaskKind mask, SharedMemory limit, const Problem& problem, int workers, void* stream);
};

// Every option. E: float too; D: the head size that both are padded to.
template <class E, int D>
struct GeneralForwardUnit {
  static Status load();
  static Status launch(const Problem& problem, void* stream);
};

}  // namespace tilewise::cuda::v2
