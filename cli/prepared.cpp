#include "cli/prepared.h"

#include "cli/shape.h"

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

}  // namespace tilewise::cli
