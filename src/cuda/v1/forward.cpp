#include "cuda/common/carver.h"
#include "cuda/common/launch.cuh"
#include "cuda/kernels.h"
#include "cuda/v1/host.h"
#include "cuda/v1/units.h"

namespace tilewise::cuda {
namespace v1 {
namespace {

constexpr const char* kName = "cuda.v1.forward";
constexpr int kPairThreads = 64;

constexpr const ForwardUnit* kUnits[2][3] = {{&forward_f16_64, &forward_f16_128, &forward_f16_256},
                                             {&forward_bf16_64, &forward_bf16_128, &forward_bf16_256}};

const ForwardUnit& unit_of(const Problem& p) { return *kUnits[p.type == Type::bf16][size_class(p)]; }

struct Choice {
  int splits;  // thread blocks that share the Q_i of a head
  int pairs;   // of warps, of a thread block

  int64_t blocks(const Problem& p) const { return p.batch * p.heads * splits; }
};

int64_t shared_bytes(const ForwardUnit& unit, int64_t pairs) { return unit.key_bytes + pairs * unit.pair_bytes; }

Choice choose(const Problem& p, const Settings& settings) {
  const ForwardUnit& unit = unit_of(p);
  const int64_t bytes = most_shared_bytes(settings);
  const int64_t visited = greater(1, ceil_div(p.max_rows, kForwardRows));
  Choice choice;
  choice.splits = static_cast<int>(clamp(p.num_splits, 1, visited));
  choice.pairs = static_cast<int>(clamp((bytes - unit.key_bytes) / unit.pair_bytes, 1, kMostPairs));
  return choice;
}

// O, l and m, and the keys that each Q_i sees.
ForwardMemory memory_of(const Problem& p, const Choice& choice, Carver& carver) {
  const int64_t rows = workspace_rows(p, kForwardRows), pieces = ceil_div(p.value_dim, 16);
  ForwardMemory memory;
  memory.output = {carver.take<float>(p.heads * rows * pieces * 16), pieces};
  memory.state = carver.take<SumAndMax>(p.heads * rows);
  memory.ranges = carver.take<RowsRange>(p.heads * (rows / kForwardRows));
  memory.rows = rows;
  memory.splits = choice.splits;
  return memory;
}

Sizing size(const Problem& p, const Settings& settings) {
  const Choice choice = choose(p, settings);
  Carver carver{nullptr};
  (void)memory_of(p, choice, carver);
  return {.query_rows = kForwardRows,
          .keys = unit_of(p).keys,
          .splits = choice.splits,
          .workspace_bytes = static_cast<uint64_t>(carver.used)};
}

Status load(const Problem& p, const Settings& settings) {
  const ForwardUnit& unit = unit_of(p);
  return load_within(kName, unit.kernel, shared_bytes(unit, choose(p, settings).pairs), settings);
}

Status launch_forward(const Problem& p, const Settings& settings, const Launch& launch) {
  const ForwardUnit& unit = unit_of(p);
  const Choice choice = choose(p, settings);
  Carver carver{launch.workspace};
  const ForwardMemory memory = memory_of(p, choice, carver);
  const Grid grid{.blocks = choice.blocks(p),
                  .threads = kPairThreads * choice.pairs,
                  .shared_bytes = shared_bytes(unit, choice.pairs)};
  return cuda::launch(kName, unit.kernel, grid, launch.stream, p, memory);
}

}  // namespace
}  // namespace v1

constinit const Kernel v1_forward = {.name = v1::kName,
                                     .pass = Pass::forward,
                                     .rank = Rank::rung,
                                     .algorithm = Algorithm::v1,
                                     .isa = Isa::cuda,
                                     .device_type = TW_CUDA,
                                     .runs_on = needs_sm80,
                                     .refuse = v1::refuse,
                                     .size = v1::size,
                                     .load = v1::load,
                                     .launch = v1::launch_forward};

}  // namespace tilewise::cuda
