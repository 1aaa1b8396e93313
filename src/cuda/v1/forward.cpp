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
  const int64_t bytes = settings.fast_memory * 4;
  const int64_t visited = greater(1, ceil_div(p.max_rows, kForwardRows));
  Choice choice;
  choice.splits = static_cast<int>(clamp(p.num_splits, 1, visited));
  choice.pairs = static_cast<int>(clamp((bytes - unit.key_bytes) / unit.pair_bytes, 1, kMostPairs));
  return choice;
}

// O, l and m, and the keys that each Q_i sees.
struct Sizes {
  int64_t rows, pieces, output, state, ranges;  // the last three in bytes

  explicit Sizes(const Problem& p)
      : rows(workspace_rows(p, kForwardRows)),
        pieces(ceil_div(p.value_dim, 16)),
        output(p.heads * rows * pieces * 64),
        state(p.heads * rows * int64_t{sizeof(SumAndMax)}),
        ranges(p.heads * (rows / kForwardRows) * int64_t{sizeof(RowsRange)}) {}
};

Sizing size(const Problem& p, const Settings& settings) {
  const Choice choice = choose(p, settings);
  const Sizes sizes(p);
  return {.query_rows = kForwardRows,
          .keys = unit_of(p).keys,
          .splits = choice.splits,
          .workspace_bytes = static_cast<uint64_t>(sizes.output + sizes.state + sizes.ranges)};
}

Status load(const Problem& p, const Settings& settings) {
  const ForwardUnit& unit = unit_of(p);
  return load_within(kName, unit.kernel, shared_bytes(unit, choose(p, settings).pairs), settings);
}

Status launch_forward(const Problem& p, const Settings& settings, const Launch& launch) {
  const ForwardUnit& unit = unit_of(p);
  const Choice choice = choose(p, settings);
  const Sizes sizes(p);
  ForwardMemory memory;
  memory.output = {reinterpret_cast<float*>(launch.workspace), sizes.pieces};
  memory.state = reinterpret_cast<SumAndMax*>(launch.workspace + sizes.output);
  memory.ranges = reinterpret_cast<RowsRange*>(launch.workspace + sizes.output + sizes.state);
  memory.rows = sizes.rows;
  memory.splits = choice.splits;
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
