// What a kernel's runs on a workload have told: the rows of `bench` and `demo`.
#pragma once

#include <cstdint>
#include <optional>

#include "cli/measure.h"
#include "cli/table.h"
#include "cli/workload.h"

namespace tilewise::cli {

// A call that has run once.
struct Contender {
  Call call;
  std::optional<int64_t> peak_bytes;     // growth of resident memory in that run; GPU: workspace and outputs
  std::optional<int64_t> bytes_counted;  // by the CPU's standard and v1 in that run, in the counting build
  std::optional<double> max_error;
};

Contender first_run(const Workload& workload, Pass pass, const PlanOptions& options);

// Between slow and fast memory, by the model; none for a problem too large to count.
std::optional<int64_t> bytes_moved(const Call& call);

Table measured_table();
// Times them in turns, and adds a row for each.
void add_timed(Table& table, const Workload& workload, const std::vector<Contender>& contenders, const Effort& effort,
               const std::function<void(double done)>& step);
void add_measured(Table& table, const Workload& workload, const Contender& contender, const Timing& timing);

}  // namespace tilewise::cli
