#include "cuda/common/alignment.h"
#include "cuda/common/launch.cuh"
#include "cuda/kernels.h"
#include "cuda/v1/host.h"
#include "cuda/v1/units.h"

namespace tilewise::cuda {
namespace v1 {
namespace {

constexpr const char* kName = "cuda.v1.backward";

// For each type and head size, the one for more shared memory first.
constexpr const BackwardUnit* kUnits[2][3][2] = {{{&backward_f16_64, &backward_f16_64},
                                                  {&backward_f16_128[0], &backward_f16_128[1]},
                                                  {&backward_f16_256[0], &backward_f16_256[1]}},
                                                 {{&backward_bf16_64, &backward_bf16_64},
                                                  {&backward_bf16_128[0], &backward_bf16_128[1]},
                                                  {&backward_bf16_256[0], &backward_bf16_256[1]}}};

struct Choice {
  const BackwardUnit& unit;
  int stages;  // 2 where they fit

  int64_t shared_bytes() const { return unit.shared_bytes + (stages - 1) * unit.stage_bytes; }
};

Choice choose(const Problem& p, const Settings& settings) {
  const int64_t bytes = settings.fast_memory * 4;
  const auto& units = kUnits[p.type == Type::bf16][size_class(p)];
  const BackwardUnit& unit = *units[units[0]->shared_bytes <= bytes ? 0 : 1];
  return {unit, unit.shared_bytes + unit.stage_bytes <= bytes ? 2 : 1};
}

// dQ, and the keys that each Q_i sees.
struct Sizes {
  int64_t rows, pieces, dq, ranges;  // the last two in bytes

  Sizes(const Problem& p, const BackwardUnit& unit)
      : rows(workspace_rows(p, unit.rows)),
        pieces(ceil_div(p.head_dim, 16)),
        dq(p.dq ? p.heads * rows * pieces * 64 : 0),
        ranges(p.heads * (rows / unit.rows) * int64_t{sizeof(RowsRange)}) {}
};

void refuse_backward(const Problem& p, Text& reason) {
  refuse(p, reason);
  if (reason.empty() && p.out.type != p.type) {
    reason.format("out and dout in %s: it multiplies them as %s", name_of(p.out.type), name_of(p.type));
  }
  refuse_unaligned("dout", p.dout, kCopyElements, reason);
  refuse_unaligned("dq", p.dq, kCopyElements, reason);
  refuse_unaligned("dk", p.dk, kCopyElements, reason);
  refuse_unaligned("dv", p.dv, kCopyElements, reason);
}

Sizing size(const Problem& p, const Settings& settings) {
  const BackwardUnit& unit = choose(p, settings).unit;
  const Sizes sizes(p, unit);
  return {.query_rows = unit.rows,
          .keys = unit.keys,
          .chunk_keys = unit.keys,
          .workspace_bytes = static_cast<uint64_t>(sizes.dq + sizes.ranges)};
}

Status load(const Problem& p, const Settings& settings) {
  const Choice choice = choose(p, settings);
  return load_within(kName, choice.unit.kernel, choice.shared_bytes(), settings);
}

Status launch_backward(const Problem& p, const Settings& settings, const Launch& launch) {
  const Choice choice = choose(p, settings);
  const Sizes sizes(p, choice.unit);
  BackwardMemory memory;
  memory.dq = {reinterpret_cast<float*>(launch.workspace), sizes.pieces};
  memory.ranges = reinterpret_cast<RowsRange*>(launch.workspace + sizes.dq);
  memory.rows = sizes.rows;
  memory.stages = choice.stages;
  const Grid grid{
      .blocks = p.batch * p.heads_kv, .threads = choice.unit.threads, .shared_bytes = choice.shared_bytes()};
  return cuda::launch(kName, choice.unit.kernel, grid, launch.stream, p, memory);
}

}  // namespace
}  // namespace v1

constinit const Kernel v1_backward = {.name = v1::kName,
                                      .pass = Pass::backward,
                                      .rank = Rank::rung,
                                      .algorithm = Algorithm::v1,
                                      .isa = Isa::cuda,
                                      .device_type = TW_CUDA,
                                      .runs_on = needs_sm80,
                                      .refuse = v1::refuse_backward,
                                      .size = v1::size,
                                      .load = v1::load,
                                      .launch = v1::launch_backward};

}  // namespace tilewise::cuda
