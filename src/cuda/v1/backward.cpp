#include "cuda/common/alignment.h"
#include "cuda/common/carver.h"
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
  const int64_t bytes = most_shared_bytes(settings);
  const auto& units = kUnits[p.type == Type::bf16][size_class(p)];
  const BackwardUnit& unit = *units[units[0]->shared_bytes <= bytes ? 0 : 1];
  return {unit, unit.shared_bytes + unit.stage_bytes <= bytes ? 2 : 1};
}

// dQ, and the keys that each Q_i sees.
BackwardMemory memory_of(const Problem& p, const Choice& choice, Carver& carver) {
  const int64_t rows = workspace_rows(p, choice.unit.rows), pieces = ceil_div(p.head_dim, 16);
  BackwardMemory memory;
  memory.dq = {p.dq ? carver.take<float>(p.heads * rows * pieces * 16) : nullptr, pieces};
  memory.ranges = carver.take<RowsRange>(p.heads * (rows / choice.unit.rows));
  memory.rows = rows;
  memory.stages = choice.stages;
  return memory;
}

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
  const Choice choice = choose(p, settings);
  Carver carver{nullptr};
  (void)memory_of(p, choice, carver);
  return {.query_rows = choice.unit.rows,
          .keys = choice.unit.keys,
          .chunk_keys = choice.unit.keys,
          .workspace_bytes = static_cast<uint64_t>(carver.used)};
}

Status load(const Problem& p, const Settings& settings) {
  const Choice choice = choose(p, settings);
  return load_within(kName, choice.unit.kernel, choice.shared_bytes(), settings);
}

Status launch_backward(const Problem& p, const Settings& settings, const Launch& launch) {
  const Choice choice = choose(p, settings);
  Carver carver{launch.workspace};
  const BackwardMemory memory = memory_of(p, choice, carver);
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
