#include "cli/prepared.h"

#include "cli/failure.h"
#include "cli/shape.h"
#include "core/kernel.h"

namespace tilewise::cli {

Prepared::Prepared(const Problem& problem, const PlanOptions& options) : problem_(problem) {
  check(make_plan(problem_, options, plan_));
  workspace_ = Buffer(static_cast<int64_t>(plan_.sizing.workspace_bytes), "the workspace");
}

void Prepared::run() const {
  Launch launch;
  launch.workspace = workspace_.data();
  launch.parallel = own_threads();
  check(run_plan(plan_, problem_, launch));
}

void check_kernel_option(const std::string& parts) {
  if (parts.empty()) return;
  for (const Kernel* kernel : kernels(TW_CPU)) {
    if (names_kernel(parts.c_str(), kernel->name)) return;
  }
  fail(ExitCode::usage, "--kernel: no kernel is named {}; `tilewise info` lists them", in_quotes(parts));
}

}  // namespace tilewise::cli
