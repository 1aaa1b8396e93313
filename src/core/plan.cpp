#include "core/plan.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/device.h"
#include "core/unowned.h"

namespace tilewise {
namespace {

constexpr double kSmallProblem = 1e5;  // multiply-adds that one thread does before a second one has woken up

const char* text_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value && *value ? value : nullptr;
}

bool strict() {
  const char* value = text_of("TILEWISE_STRICT");
  return value && std::strcmp(value, "0") != 0;
}

Settings settings_of(const Problem& problem, const PlanOptions& options) {
  Settings settings;
  const double pairs = static_cast<double>(problem.total_rows) * static_cast<double>(problem.max_keys);
  const double dims = static_cast<double>(problem.heads) * static_cast<double>(problem.head_dim + problem.value_dim);
  if (problem.threads > 0) {
    settings.workers = std::min(problem.threads, kMaxWorkers);
  } else if (pairs * dims >= kSmallProblem) {
    settings.workers = available_cores();
  }
  settings.fast_memory = options.fast_memory > 0 ? options.fast_memory : this_cpu().l2_bytes / 4;
  return settings;
}

bool serves_pass(const Kernel& kernel, const Problem& problem) {
  return kernel.pass == problem.pass && kernel.device_type == problem.device_type;
}

}  // namespace

Text refusal_of(const Kernel& kernel, const Problem& problem, bool forced) {
  Text reason;
  if (kernel.rank == Rank::rung && !forced) {
    reason.format("only for comparison: runs when forced");
  } else if (kernel.rank == Rank::fallback && !forced && strict()) {
    reason.format("TILEWISE_STRICT is set");
  } else if (kernel.runs_on(problem.device_index, reason)) {
    kernel.refuse(problem, reason);
  }
  return reason;
}

Status make_plan(const Problem& problem, const PlanOptions& options, Plan& plan) {
  const char* force = options.force ? options.force : text_of("TILEWISE_FORCE_KERNEL");
  Text first_refusal;
  for (const Kernel* kernel : kernels()) {
    if (!serves_pass(*kernel, problem) || (force && !names_kernel(force, kernel->name))) continue;
    const Text reason = refusal_of(*kernel, problem, force != nullptr);
    if (reason.empty()) {
      plan.kernel = kernel;
      plan.settings = settings_of(problem, options);
      plan.sizing = kernel->size(problem, plan.settings);
      return {};
    }
    if (first_refusal.empty()) first_refusal.format("%s: %s", kernel->name, reason.chars);
  }
  if (first_refusal.empty())
    first_refusal.format("no %s kernel is named %s", name_of(problem.pass), force ? force : "");
  return failure(TW_UNSUPPORTED, "%s", first_refusal.chars);
}

Status run_plan(const Plan& plan, const Problem& problem, const Launch& launch) {
  if (Status status = check_lengths(problem); !status.ok()) return status;
  clear_unowned(problem);
  return plan.kernel->launch(problem, plan.settings, launch);
}

}  // namespace tilewise
