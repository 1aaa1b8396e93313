#include "cli/measure.h"

#include <algorithm>
#include <cmath>

#include "cli/fma_probe.h"
#include "cli/stopwatch.h"
#include "core/kernel.h"
#include "traffic/roofline.h"

namespace tilewise::cli {
namespace {

struct Subject {
  const Call& call;
  double flops, roofline_seconds;
  Isa isa;
  int workers;
};

Subject subject_of(const Call& call) {
  const Plan& plan = call.plan();
  const auto traffic = traffic_of(plan, call.prepared().problem());
  const Problem& problem = call.prepared().problem();
  return {call, traffic ? static_cast<double>(traffic->flops) : 0,
          traffic ? roofline_seconds(plan, problem, *traffic) : 0, plan.kernel->isa, plan.settings.workers};
}

// The roof is the vendor's figure: a GPU's clock is not for a probe to read.
void time_once_on_gpu(const Subject& subject, Timing& timing) {
  const Prepared& prepared = subject.call.prepared();
  const double ms = gpu_milliseconds(prepared.problem().device_index, [&] { return prepared.start(); });
  timing.ms.push_back(ms);
  timing.of_peak.push_back(subject.roofline_seconds / (ms * 1e-3));
}

void time_once(const Subject& subject, Timing& timing) {
  if (subject.call.prepared().on_gpu()) return time_once_on_gpu(subject, timing);
  const double before = fma_rate(subject.isa, subject.workers);
  const Stopwatch stopwatch(subject.call.prepared().single_threaded());
  subject.call.run();
  const double seconds = stopwatch.seconds();
  // A disturbed probe is too low, never too high.
  const double peak = std::max(before, fma_rate(subject.isa, subject.workers));
  timing.ms.push_back(seconds * 1e3);
  timing.of_peak.push_back(subject.flops / seconds / peak);
}

}  // namespace

std::vector<Timing> measure(const std::vector<const Call*>& calls, const Effort& effort,
                            const std::function<void(double done)>& step) {
  std::vector<Subject> subjects;
  subjects.reserve(calls.size());
  for (const Call* call : calls) subjects.push_back(subject_of(*call));
  std::vector<Timing> timings(calls.size());
  const Stopwatch stopwatch(false);
  const double budget = effort.seconds * static_cast<double>(calls.size());
  for (int64_t runs = 0; runs < effort.least_runs || stopwatch.seconds() < budget; ++runs) {
    const double by_time = stopwatch.seconds() / budget;
    step(std::min(by_time, static_cast<double>(runs) / static_cast<double>(effort.least_runs)));
    for (size_t i = 0; i < subjects.size(); ++i) time_once(subjects[i], timings[i]);
  }
  return timings;
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return NAN;
  std::sort(values.begin(), values.end());
  const double place = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  const double weight = place - std::floor(place);
  return values[below] * (1 - weight) + values[above] * weight;
}

}  // namespace tilewise::cli
