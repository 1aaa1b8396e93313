#include "traffic/traffic.h"

#include <algorithm>

#include "core/backend.h"
#include "cpu/common/blocks.h"
#include "traffic/live.h"
#include "traffic/roofline.h"

namespace tilewise {
namespace {

constexpr double kMostSteps = 1 << 24;  // rows to walk along
constexpr double kSequenceSteps = 16;   // what a sequence costs besides its rows
constexpr double kMostCount = 0x1p60;

// Bounds from above, from the sizes of the slots alone.
bool can_count(const LiveProblem& live) {
  const Problem& p = *live;
  const auto batch = static_cast<double>(p.batch), heads = static_cast<double>(p.heads);
  const double rows = std::max(static_cast<double>(p.total_rows), batch);
  const bool by_head = keys_differ_by_head(p);
  const double steps = rows * (by_head || p.mask ? heads : static_cast<double>(live->group())) +
                       kSequenceSteps * batch * (by_head ? static_cast<double>(p.heads_kv) : 1);
  // Of FLOPs; bytes are fewer than twice as many, in blocks of one row and one key.
  const double most =
      8 * rows * heads * static_cast<double>(p.max_keys + 1) * static_cast<double>(p.head_dim + p.value_dim + 8);
  return steps <= kMostSteps && most <= kMostCount;
}

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

GpuCache cache_of(const Plan& plan, const Problem& problem) {
  Gpu gpu;
  if (const Backend* backend = cuda_backend()) (void)backend->read_gpu(problem.device_index, gpu);
  return {.bytes = gpu.l2_bytes, .multiprocessors = plan.settings.workers};
}

Traffic bytes_on_gpu(const Plan& plan, const Problem& problem, const LiveProblem& live) {
  Traffic t;
  if (plan.kernel->algorithm == Algorithm::standard) {
    t = standard_traffic_on_gpu(live, plan.sizing, cache_of(plan, problem));
  } else if (plan.kernel->algorithm == Algorithm::v1) {
    t = v1_traffic_on_gpu(live, plan.sizing, cache_of(plan, problem));
  } else if (plan.kernel->algorithm == Algorithm::v2) {
    t = v2_traffic_on_gpu(live, plan.sizing);
  } else {
    return t;
  }
  t.device_bytes += static_cast<int64_t>(compulsory_bytes(problem));
  return t;
}

// count() gives the bytes.
template <class Count>
std::optional<Traffic> counted(const LiveProblem& live, Count count) {
  if (!can_count(live)) return std::nullopt;
  Traffic traffic = count();
  traffic.flops = flops_of(live);
  return traffic;
}

}  // namespace

void add(const Traffic& part, int64_t times, Traffic& total) {
  total.bytes_read += part.bytes_read * times;
  total.bytes_written += part.bytes_written * times;
  total.device_bytes += part.device_bytes * times;
}

std::optional<Traffic> traffic_of(Algorithm algorithm, const Problem& problem, int64_t fast_memory) {
  const LiveProblem live(problem);
  return counted(live, [&] { return bytes_of(algorithm, live, fast_memory); });
}

std::optional<Traffic> traffic_of(const Plan& plan, const Problem& problem) {
  const Algorithm algorithm = plan.kernel->algorithm;
  const bool on_gpu = plan.kernel->device_type == TW_CUDA;
  const LiveProblem live(problem);
  return counted(live, [&] {
    if (on_gpu) return bytes_on_gpu(plan, problem, live);
    if (algorithm == Algorithm::v2) return v2_traffic(live, plan.sizing.query_rows, plan.sizing.chunk_keys);
    return bytes_of(algorithm, live, plan.settings.fast_memory);
  });
}

}  // namespace tilewise
