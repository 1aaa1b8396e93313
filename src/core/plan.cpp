#include "core/plan.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "core/backend.h"
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

Settings settings_of_gpu(const Problem& problem, const PlanOptions& options) {
  Gpu gpu;
  (void)cuda_backend()->read_gpu(problem.device_index, gpu);  // a kernel runs there: it has been read
  const int64_t shared_floats = gpu.shared_bytes / static_cast<int64_t>(sizeof(float));
  return {.workers = std::max(1, gpu.multiprocessors - problem.sm_margin),
          .fast_memory = options.fast_memory > 0 ? options.fast_memory : shared_floats};
}

Settings settings_of(const Problem& problem, const PlanOptions& options) {
  if (problem.device_type == TW_CUDA) return settings_of_gpu(problem, options);
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

bool serves_pass(const Kernel& kernel, const Problem& problem) { return kernel.pass == problem.pass; }

// The kernel that is asked for by name, if one is.
struct Request {
  const char* name;  // null: none
  const char* source;

  bool asks_for(const Kernel& kernel) const { return !name || names_kernel(name, kernel.name); }
};

Request request_of(const PlanOptions& options) {
  if (options.force) return {options.force, "the kernel asked for"};
  return {text_of("TILEWISE_FORCE_KERNEL"), "TILEWISE_FORCE_KERNEL"};
}

const char* name_of_device(int32_t device_type) { return device_type == TW_CPU ? "CPU" : "GPU"; }

Status nobody_asked(const Request& request, const Problem& problem) {
  const char *pass = name_of(problem.pass), *device = name_of_device(problem.device_type);
  if (!request.name) return failure(TW_UNSUPPORTED, "this build has no %s kernel for the %s", pass, device);
  const int32_t other = problem.device_type == TW_CPU ? TW_CUDA : TW_CPU;
  for (const int32_t device_type : {problem.device_type, other}) {
    for (const Kernel* kernel : kernels(device_type)) {
      if (!request.asks_for(*kernel)) continue;
      if (device_type == problem.device_type) {
        return failure(TW_UNSUPPORTED, "%s is %s, which has no %s", request.source, request.name, pass);
      }
      return failure(TW_UNSUPPORTED, "%s is %s, which is not for the %s", request.source, request.name, device);
    }
  }
  Status status =
      failure(TW_INVALID_ARGUMENT,
              "%s is %s: no kernel has that in its name (tw_info, tilewise.info() and `tilewise info` list them)",
              request.source, request.name);
  Text why_not;
  if (!cuda_backend(&why_not)) status.message.append("; kernels for GPUs are not here: %s", why_not.chars);
  return status;
}

}  // namespace

const char* forced_kernel(const PlanOptions& options) { return request_of(options).name; }

Text refusal_of(const Kernel& kernel, const Problem& problem, bool forced) {
  Text reason;
  if (kernel.rank == Rank::rung && !forced) {
    reason.format("only for comparison: runs when forced");
  } else if (kernel.rank == Rank::fallback && !forced && strict()) {
    reason.format("TILEWISE_STRICT is set");
  } else if (kernel.rank != Rank::fallback && problem.type == Type::f64) {
    reason.format("fp64 is the oracle's type, for the reference kernel alone");
  } else if (kernel.runs_on(problem.device_index, reason)) {
    kernel.refuse(problem, reason);
  }
  return reason;
}

Status choose_plan(const Problem& problem, const PlanOptions& options, Plan& plan) {
  const Request request = request_of(options);
  Text first_refusal;
  if (problem.device_type == TW_CUDA) {
    if (Status status = check_gpu(problem.device_index); !status.ok()) return status;
  }
  for (const Kernel* kernel : kernels(problem.device_type)) {
    if (!serves_pass(*kernel, problem) || !request.asks_for(*kernel)) continue;
    const Text reason = refusal_of(*kernel, problem, request.name != nullptr);
    if (reason.empty()) {
      plan.kernel = kernel;
      plan.settings = settings_of(problem, options);
      plan.sizing = kernel->size(problem, plan.settings);
      return {};
    }
    if (first_refusal.empty()) first_refusal.format("%s refuses: %s", kernel->name, reason.chars);
  }
  if (first_refusal.empty()) return nobody_asked(request, problem);
  if (request.name)
    return failure(TW_UNSUPPORTED, "%s is %s, but %s", request.source, request.name, first_refusal.chars);
  return failure(TW_UNSUPPORTED, "no kernel serves this problem; %s", first_refusal.chars);
}

Status load_plan(const Plan& plan, const Problem& problem) {
  return plan.kernel->load ? cuda_backend()->load(*plan.kernel, problem, plan.settings) : Status{};
}

Status make_plan(const Problem& problem, const PlanOptions& options, Plan& plan) {
  const Status status = choose_plan(problem, options, plan);
  return status.ok() ? load_plan(plan, problem) : status;
}

Status run_plan(const Plan& plan, const Problem& problem, const Launch& launch) {
  if (problem.device_type == TW_CUDA) return cuda_backend()->run(*plan.kernel, problem, plan.settings, launch);
  if (Status status = check_lengths(problem); !status.ok()) return status;
  clear_unowned(problem);
  return plan.kernel->launch(problem, plan.settings, launch);
}

}  // namespace tilewise
