#include "traffic/traffic.h"

#include "traffic/blocks.h"
#include "traffic/live.h"

namespace tilewise {
namespace {

// Forward: Q K^T, P V. Backward: Q K^T and dO V^T again, then a product for each gradient that is wanted.
int64_t flops_of(const LiveProblem& live) {
  const Problem& p = *live;
  int64_t pairs = 0;
  live.each_group(
      [&](const Sequence& s, int64_t h, int64_t times) { pairs += times * live.pairs(s, h, live.group()); });
  if (p.pass == Pass::forward) return 2 * pairs * (p.head_dim + p.value_dim);
  const int64_t of_head_dim = 1 + (p.dq ? 1 : 0) + (p.dk ? 1 : 0), of_value_dim = 1 + (p.dv ? 1 : 0);
  return 2 * pairs * (of_head_dim * p.head_dim + of_value_dim * p.value_dim);
}

Traffic with_flops(Traffic traffic, const LiveProblem& live) {
  traffic.flops = flops_of(live);
  return traffic;
}

}  // namespace

void add(const Traffic& part, int64_t times, Traffic& total) {
  total.bytes_read += part.bytes_read * times;
  total.bytes_written += part.bytes_written * times;
}

Traffic traffic_of(Algorithm algorithm, const Problem& problem, int64_t fast_memory) {
  const LiveProblem live(problem);
  if (algorithm == Algorithm::standard) return with_flops(standard_traffic(live, fast_memory), live);
  if (algorithm == Algorithm::v1) return with_flops(v1_traffic(live, fast_memory), live);
  // The side that stays has the larger block; with Q and O, or dK and dV, half of the fast memory.
  const int64_t stays = v1_blocks(problem, fast_memory).keys, passes = v1_blocks(problem, fast_memory).rows;
  return with_flops(problem.pass == Pass::forward ? v2_traffic(live, stays, passes) : v2_traffic(live, passes, stays),
                    live);
}

Traffic traffic_of(const Plan& plan, const Problem& problem) {
  const LiveProblem live(problem);
  if (names_kernel("standard", plan.kernel->name))
    return traffic_of(Algorithm::standard, problem, plan.settings.fast_memory);
  if (names_kernel("v1", plan.kernel->name)) return traffic_of(Algorithm::v1, problem, plan.settings.fast_memory);
  if (names_kernel("tiled", plan.kernel->name))
    return with_flops(v2_traffic(live, plan.sizing.query_rows, plan.sizing.chunk_keys), live);
  return with_flops({}, live);
}

}  // namespace tilewise
