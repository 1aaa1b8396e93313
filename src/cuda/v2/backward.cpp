#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <numbers>
#include <type_traits>

#include "core/mask.h"
#include "core/options.h"
#include "cuda/common/alignment.h"
#include "cuda/common/carver.h"
#include "cuda/common/shared_memory.h"
#include "cuda/gpu.h"
#include "cuda/kernels.h"
#include "cuda/v2/backward_unit.h"
#include "cuda/v2/head_dims.h"

namespace tilewise::cuda::v2 {
namespace {

// The functions of one translation unit.
struct Unit {
  Status (*load)(const Problem&, const BackwardTile&, BackwardMask);
  Status (*launch)(const Problem&, const BackwardTile&, BackwardMask, const BackwardWork&, void* stream);
  Status (*load_bias)();
  Status (*launch_bias)(const Problem&, const BackwardWork&, const BiasWork&, void* stream);
};

template <class E, int D>
constexpr Unit unit() {
  using Bias = BackwardBiasUnit<E>;
  if constexpr (std::is_same_v<E, float>) {
    using F32 = BackwardF32Unit<D>;
    return {[](const Problem& p, const BackwardTile&, BackwardMask) { return F32::load(p); },
            [](const Problem& p, const BackwardTile&, BackwardMask, const BackwardWork& work, void* stream) {
              return F32::launch(p, work, stream);
            },
            Bias::load, Bias::launch};
  } else {
    using Main = BackwardUnit<E, D>;
    return {Main::load, Main::launch, Bias::load, Bias::launch};
  }
}

template <class E>
Unit unit_of(int head_dim) {
  return with_head_dim(head_dim, [](auto dim) { return unit<E, dim>(); });
}

// dO is an operand of the products, so that it decides their type.
bool multiplies_f32(const Problem& p) { return p.dout.type == Type::f32; }

Unit unit_of(const Problem& p) {
  const int dim = padded_dim(p);
  if (multiplies_f32(p)) return unit_of<float>(dim);
  return p.type == Type::f16 ? unit_of<__half>(dim) : unit_of<__nv_bfloat16>(dim);
}

// How a problem is served.
struct Choice {
  BackwardTile tile;
  BackwardMask mask;
};

Choice choice_of(const Problem& p, const Settings& settings) {
  const int dim = padded_dim(p);
  if (multiplies_f32(p)) return {backward_f32_tile(dim), BackwardMask::general};
  const int64_t shared_bytes = most_shared_bytes(settings);
  const BackwardTile small = backward_tile(dim, 0);
  if (has_terms(p)) return {small, BackwardMask::general};
  if (!has_key_intervals(p) && !p.leftpad_k) return {backward_tile(dim, shared_bytes), BackwardMask::simple};
  const BackwardTile fitting = backward_tile(dim, shared_bytes, false);
  return {fitting, fitting.shared_kb > small.shared_kb ? BackwardMask::ranges : BackwardMask::general};
}

// L2 that the rows of a section may fill.
constexpr int64_t kSectionBytes = int64_t{32} << 20;
// In order and without a mask, the thread blocks of a head go through its rows one behind the other, so that they share
// what L2 has of them anyway, and the last one begins late: less so if several heads share the GPU (1 % of a pass).
constexpr int64_t kHeadsInOrder = 4;

BackwardWork work_of(const Problem& p, const Choice& choice, Carver& carver) {
  const BackwardTile& tile = choice.tile;
  BackwardWork work;
  work.rows = work_rows(p);
  work.group = static_cast<int>(p.heads / greater(1, p.heads_kv));
  const int64_t rows = p.heads * work.rows, pairs = p.batch * p.heads_kv;
  const int64_t element_bytes = size_of(p.q.type) + size_of(p.dout.type) + 4;  // of Q, dO and dQ
  const int64_t pair_bytes = p.max_rows * work.group * tile.head_dim * element_bytes;
  work.wants_dq = static_cast<bool>(p.dq);
  work.in_order = p.deterministic && p.dq && p.max_rows > 0;
  work.scale_log2 =
      static_cast<float>(std::clamp(p.softmax_scale * std::numbers::log2e, -double{FLT_MAX}, double{FLT_MAX}));
  // LSE in the units of the rounded scale, so that both meet; not where the scale is rounded to more than its last
  // bits.
  const float size = std::fabs(work.scale_log2);
  work.lse_unit = size >= FLT_MIN && size < FLT_MAX ? double{work.scale_log2} / p.softmax_scale : std::numbers::log2e;
  if (choice.mask == BackwardMask::general) work.lse_unit = 1;
  work.row_blocks = static_cast<int>(round_up(p.max_rows, kRowStep) / kFragmentRows);
  work.key_blocks = static_cast<int>(ceil_div(p.max_keys, tile.keys()));
  const int64_t least = work.in_order && choice.mask == BackwardMask::simple && !p.causal ? kHeadsInOrder : 1;
  const int64_t section = greater(least, kSectionBytes / greater(1, pair_bytes));
  work.section = static_cast<int>(lesser(section, greater(1, pairs)));
  if (p.dq) work.dq_sum = carver.take<float>(rows * tile.head_dim);
  work.lse = carver.take<float>(rows);
  work.delta = carver.take<float>(rows);
  if (choice.mask != BackwardMask::simple) {
    const int64_t ranges = keys_differ_by_head(p) ? rows : work.rows;
    work.live = carver.take<int2>(ranges);
    work.ranges = carver.take<int4>(ranges / kFragmentRows);
  }
  work.turns = carver.take<int>(rows / kFragmentRows * kMostWarps);
  work.ticket = carver.take<int>(1);
  return work;
}

// Parts of dbias that keep a GPU busy.
constexpr int64_t kEnoughParts = 512;

BiasWork bias_work_of(const Problem& p, Carver& carver) {
  BiasWork bias;
  if (!p.dbias) return bias;
  const int64_t* extent = p.dbias.shape;
  bias.row_tiles = ceil_div(p.max_rows, kBiasTile), bias.key_tiles = ceil_div(p.max_keys, kBiasTile);
  bias.units = extent[0] * extent[1] * ceil_div(extent[2], kBiasTile) * ceil_div(extent[3], kBiasTile);
  bias.visits = (extent[0] == 1 ? p.batch : 1) * (extent[1] == 1 ? p.heads : 1) *
                (extent[2] == 1 ? bias.row_tiles : 1) * (extent[3] == 1 ? bias.key_tiles : 1);
  bias.splits = greater(1, lesser(bias.visits, kEnoughParts / greater(1, bias.units)));
  // No less than a smaller problem needs, whose tiles may have more parts.
  const int64_t most_parts = lesser(kEnoughParts, p.batch * p.heads * bias.row_tiles * bias.key_tiles);
  bias.parts = carver.take<float>(most_parts * kBiasTile * kBiasTile);
  return bias;
}

constexpr int64_t kCopyBytes = 16;  // of copies and of the stores of rows

void refuse(const Problem& p, Text& reason) {
  constexpr int64_t kMost = int64_t{1} << 30;  // of what it counts in 32 bits
  const int dim = padded_dim(p);
  constexpr int64_t kStep = 8;  // of columns
  if (dim == 0 || p.head_dim % kStep != 0 || p.value_dim % kStep != 0) {
    return reason.format("head sizes %lld and %lld: multiples of 8, 256 at most", ll(p.head_dim), ll(p.value_dim));
  }
  if (work_rows(p) > kMost || p.total_keys > kMost) return reason.format("more than 2^30 rows or keys");
  if (p.batch * p.heads > kMost) return reason.format("more than 2^30 heads");
  const int64_t longest = greater(p.max_rows, p.max_keys), blocks = round_up(longest, kRowStep) / kFragmentRows;
  if (p.batch * p.heads > kMost / greater(1, blocks)) {
    return reason.format("%lld heads of up to %lld rows or keys: more than 2^30 blocks of them", ll(p.batch * p.heads),
                         ll(longest));
  }
  for (const auto& [name, tensor] : {std::pair<const char*, const Tensor&>{"q", p.q},
                                     {"k", p.k},
                                     {"v", p.v},
                                     {"out", p.out},
                                     {"dout", p.dout},
                                     {"dq", p.dq},
                                     {"dk", p.dk},
                                     {"dv", p.dv}}) {
    if (tensor) refuse_unaligned(name, tensor, kCopyBytes / size_of(tensor.type), reason);
  }
}

Sizing size(const Problem& p, const Settings& settings) {
  const Choice choice = choice_of(p, settings);
  Carver carver{nullptr};
  (void)work_of(p, choice, carver);
  (void)bias_work_of(p, carver);
  const BackwardTile& tile = choice.tile;
  return {.query_rows = tile.queries,
          .keys = tile.keys(),
          .chunk_keys = tile.keys(),
          .workspace_bytes = static_cast<uint64_t>(carver.used)};
}

Status load(const Problem& p, const Settings& settings) {
  const Choice choice = choice_of(p, settings);
  const Unit unit = unit_of(p);
  const Status status = unit.load(p, choice.tile, choice.mask);
  return status.ok() && p.dbias ? unit.load_bias() : status;
}

Status launch(const Problem& p, const Settings& settings, const Launch& launch) {
  const Choice choice = choice_of(p, settings);
  const Unit unit = unit_of(p);
  Carver carver{launch.workspace};
  const BackwardWork work = work_of(p, choice, carver);
  const BiasWork bias = bias_work_of(p, carver);
  const Status status = unit.launch(p, choice.tile, choice.mask, work, launch.stream);
  return status.ok() && p.dbias ? unit.launch_bias(p, work, bias, launch.stream) : status;
}

}  // namespace
}  // namespace tilewise::cuda::v2

namespace tilewise::cuda {

const Kernel v2_backward = {.name = "cuda.v2.backward",
                            .pass = Pass::backward,
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
