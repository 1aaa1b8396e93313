#include "traffic/traffic.h"

#include "cpu/common/blocks.h"
#include "traffic/live.h"

namespace tilewise {
namespace {

// Forward: Q K^T, P V. Backward: Q K^T and dO V^T again, then a product for each gradient that is wanted.
int64_t flops_of(const LiveProblem& live) {
  const Problem& p = *live;
  int64_t pairs = 0;
  live.each_group(
      [&](const Sequence& s, int64_t h, int64_t times) { pairs += times * live.pairs(s, h, live->group()); });
  if (p.pass == Pass::forward) return 2 * pairs * (p.head_dim + p.value_dim);
  const int64_t of_head_dim = 1 + (p.dq ? 1 : 0) + (p.dk ? 1 : 0), of_value_dim = 1 + (p.dv ? 1 : 0);
  return 2 * pairs * (of_head_dim * p.head_dim + of_value_dim * p.value_dim);
}

// The side that stays has the larger block; with Q and O, or dK and dV, half of the fast memory.
Traffic v2_traffic(const LiveProblem& live, cpu::Blocks blocks) {
  return live->pass == Pass::forward ? v2_traffic(live, blocks.keys, blocks.rows)
                                     : v2_traffic(live, blocks.rows, blocks.keys);
}

Traffic bytes_of(Algorithm algorithm, const LiveProblem& live, int64_t fast_memory) {
  switch (algorithm) {
    case Algorithm::naive:
      return {};
    case Algorithm::standard:
      return standard_traffic(live, fast_memory);
    case Algorithm::v1:
      return v1_traffic(live, fast_memory);
    case Algorithm::v2:
      return v2_traffic(live, cpu::v1_blocks(*live, fast_memory));
  }
  return {};
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
  return with_flops(bytes_of(algorithm, live, fast_memory), live);
}

Traffic traffic_of(const Plan& plan, const Problem& problem) {
  const Algorithm algorithm = plan.kernel->algorithm;
  if (algorithm != Algorithm::v2) return traffic_of(algorithm, problem, plan.settings.fast_memory);
  const LiveProblem live(problem);
  return with_flops(v2_traffic(live, plan.sizing.query_rows, plan.sizing.chunk_keys), live);
}

}  // namespace tilewise
