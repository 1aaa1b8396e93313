#include "cli/measured.h"

#include <string>

#include "cli/peak_memory.h"
#include "traffic/traffic.h"

namespace tilewise::cli {
namespace {

bool counts_its_bytes(const Kernel& kernel) {
  const bool is_rung = kernel.algorithm == Algorithm::standard || kernel.algorithm == Algorithm::v1;
  return counts_traffic() && kernel.device_type == TW_CPU && is_rung;
}

}  // namespace

Contender first_run(const Workload& workload, Pass pass, const PlanOptions& options) {
  Contender contender{Call(workload, pass, options), {}, {}, {}};
  reset_counted_traffic();
  const PeakMemory peak;
  contender.call.run();
  contender.peak_bytes = contender.call.prepared().on_gpu() ? contender.call.gpu_bytes() : peak.growth();
  contender.call.fetch();
  const Traffic counted = counted_traffic();
  if (counts_its_bytes(*contender.call.plan().kernel)) {
    contender.bytes_counted = counted.bytes_read + counted.bytes_written;
  }
  return contender;
}

std::optional<int64_t> bytes_moved(const Call& call) {
  const std::optional<Traffic> traffic = traffic_of(call.plan(), call.prepared().problem());
  if (!traffic) return std::nullopt;
  return traffic->bytes_read + traffic->bytes_written;
}

Table measured_table() {
  using enum Column::Place;
  return Table(joined<Column>({{"kernel", "kernel", shown},
                               {"pass", "pass", record},
                               {"dtype", "dtype", caption},
                               {"layout", "layout", caption}},
                              size_columns(),
                              {{"threads", "threads", caption, as_count},
                               {"ms_median", "ms", shown, as_time},
                               {"ms_min", "min", record, as_time},
                               {"ms_p10", "p10", shown, as_time},
                               {"ms_p90", "p90", shown, as_time},
                               {"gflops", "GFLOP/s", shown, as_decimal},
                               {"percent_of_peak", "% peak", shown, as_decimal},
                               {"bytes_model", "moved", shown, as_size},
                               {"bytes_counted", "counted", caption, as_size},
                               {"workspace_bytes", "workspace", shown, as_size},
                               {"peak_bytes", "peak memory", shown, as_size},
                               {"max_error", "max error", caption, as_error},
                               {"runs", "runs", record},
                               {"device_bytes_model", "device memory", caption, as_size}}));
}

void add_timed(Table& table, const Workload& workload, const std::vector<Contender>& contenders, const Effort& effort,
               const std::function<void(double done)>& step) {
  std::vector<const Call*> calls;
  calls.reserve(contenders.size());
  for (const Contender& contender : contenders) calls.push_back(&contender.call);
  const std::vector<Timing> timings = measure(calls, effort, step);
  for (size_t i = 0; i < contenders.size(); ++i) add_measured(table, workload, contenders[i], timings[i]);
}

void add_measured(Table& table, const Workload& workload, const Contender& contender, const Timing& timing) {
  const Shape& s = workload.shape;
  const Problem& problem = contender.call.prepared().problem();
  const Plan& plan = contender.call.plan();
  const std::optional<Traffic> traffic = traffic_of(plan, problem);  // none: too large to count
  const auto counted = [&](auto number) { return traffic ? Cell(number(*traffic)) : Cell(); };
  const double ms = median(timing.ms);
  table.add(joined<Cell>(
      {std::string(plan.kernel->name), std::string(name_of(problem.pass)), std::string(name_of(s.dtype)),
       std::string(name_of(s.layout))},
      size_cells(s, workload.scores.causal),
      {int64_t{plan.settings.workers}, ms, quantile(timing.ms, 0), quantile(timing.ms, 0.1), quantile(timing.ms, 0.9),
       counted([&](const Traffic& t) { return static_cast<double>(t.flops) / ms * 1e-6; }),
       counted([&](const Traffic&) { return 100 * median(timing.of_peak); }),
       counted([](const Traffic& t) { return t.bytes_read + t.bytes_written; }), cell_of(contender.bytes_counted),
       static_cast<int64_t>(plan.sizing.workspace_bytes), cell_of(contender.peak_bytes), cell_of(contender.max_error),
       static_cast<int64_t>(timing.ms.size()),
       problem.device_type == TW_CUDA ? counted([](const Traffic& t) { return t.device_bytes; }) : Cell()}));
}

}  // namespace tilewise::cli
