#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "core/options.h"
#include "cuda/common/alignment.h"
#include "cuda/common/shared_memory.h"
#include "cuda/gpu.h"
#include "cuda/kernels.h"
#include "cuda/v2/forward_schedule.h"
#include "cuda/v2/forward_unit.h"
#include "cuda/v2/head_dims.h"

namespace tilewise::cuda::v2 {
namespace {

// What one call needs of the translation unit for its type and head size.
struct Unit {
  Status (*load)(MaskKind, SharedMemory) = nullptr;
  Status (*launch)(MaskKind, SharedMemory, const Problem&, int workers, void* stream) = nullptr;
  Status (*load_general)() = nullptr;
  Status (*launch_general)(const Problem&, void* stream) = nullptr;
};

template <class E, int D>
Unit unit() {
  using General = GeneralForwardUnit<E, D>;
  if constexpr (std::is_same_v<E, float>) {
    return {.load_general = General::load, .launch_general = General::launch};
  } else {
    using Fast = ForwardUnit<E, D>;
    return {Fast::load, Fast::launch, General::load, General::launch};
  }
}

template <class E>
Unit unit_of(int head_dim) {
  return with_head_dim(head_dim, [](auto dim) { return unit<E, dim>(); });
}

Unit unit_of(const Problem& p) {
  const int dim = padded_dim(p);
  if (p.type == Type::f16) return unit_of<__half>(dim);
  return p.type == Type::bf16 ? unit_of<__nv_bfloat16>(dim) : unit_of<float>(dim);
}

// ---- Which kernel.

bool is_fast(const Problem& p) {
  const int dim = padded_dim(p);
  return p.type != Type::f32 && p.head_dim == dim && p.value_dim == dim && !has_key_intervals(p) && !has_terms(p) &&
         !p.leftpad_k && !p.sink && !p.prior_out;
}

MaskKind mask_of(const Problem& p) {
  if (has_lengths(p)) return MaskKind::lengths;
  return p.causal ? MaskKind::causal : MaskKind::none;
}

SharedMemory limit_of(const Settings& settings) { return shared_memory_of(most_shared_bytes(settings)); }

// ---- The row of the table.

void refuse(const Problem& p, Text& reason) {
  constexpr int kFewestRows = 32;  // of all tiles
  if (padded_dim(p) == 0 || p.head_dim % 8 != 0 || p.value_dim % 8 != 0) {
    return reason.format("head sizes are %lld and %lld: it serves multiples of 8 up to 256", ll(p.head_dim),
                         ll(p.value_dim));
  }
  if (!fits_schedule(p, kFewestRows, reason)) return;
  constexpr int64_t kCopyBytes = 16;
  const auto check = [&](const char* name, const Tensor& t) {
    refuse_unaligned(name, t, kCopyBytes / size_of(t.type), reason);
  };
  check("q", p.q), check("k", p.k), check("v", p.v), check("out", p.out);
}

Sizing size(const Problem& p, const Settings& settings) {
  const int dim = padded_dim(p);
  if (is_fast(p)) {
    const ForwardTile tile = forward_tile(dim, mask_of(p), limit_of(settings));
    return {.query_rows = tile.rows(), .keys = tile.keys, .splits = 1};
  }
  const GeneralForwardTile tile = general_forward_tile(dim, static_cast<int>(size_of(p.type)));
  return {.query_rows = tile.rows(), .keys = tile.keys, .splits = 1};
}

Status load(const Problem& p, const Settings& settings) {
  const Unit unit = unit_of(p);
  return is_fast(p) ? unit.load(mask_of(p), limit_of(settings)) : unit.load_general();
}

Status launch(const Problem& p, const Settings& settings, const Launch& launch) {
  const Unit unit = unit_of(p);
  if (!is_fast(p)) return unit.launch_general(p, launch.stream);
  return unit.launch(mask_of(p), limit_of(settings), p, settings.workers, launch.stream);
}

}  // namespace
}  // namespace tilewise::cuda::v2

namespace tilewise::cuda {

const Kernel v2_forward = {.name = "cuda.v2.forward",
                           .pass = Pass::forward,
                           .rank = Rank::chosen,
                           .algorithm = Algorithm::v2,
                           .isa = Isa::cuda,
                           .device_type = TW_CUDA,
                           .runs_on = needs_sm80,
                           .refuse = v2::refuse,
                           .size = v2::size,
                           .load = v2::load,
                           .launch = v2::launch};

}  // namespace tilewise::cuda
