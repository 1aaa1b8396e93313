#include "cli/prepared.h"

#include "cli/failure.h"
#include "cli/shape.h"
#include "core/kernel.h"

namespace tilewise::cli {

Prepared::Prepared(const Problem& problem, const PlanOptions& options) : problem_(problem) {
  check(make_plan(problem_, options, plan_));
  const auto bytes = static_cast<int64_t>(plan_.sizing.workspace_bytes);
  if (on_gpu()) {
    gpu_workspace_ = GpuMemory(problem_.device_index, bytes, "the workspace");
  } else {
    workspace_ = Buffer(bytes, "the workspace");
  }
}

Status Prepared::start() const {
  Launch launch;
  if (on_gpu()) {
    launch.workspace = gpu_workspace_.data();
  } else {
    launch.workspace = workspace_.data();
    launch.parallel = own_threads();
  }
  return run_plan(plan_, problem_, launch);
}

void Prepared::run() const {
  check(start());
  if (on_gpu()) check(cuda_backend()->wait(problem_.device_index, nullptr));
}

void check_kernel_option(const std::string& parts) {
  if (parts.empty()) return;
  for (const int32_t device_type : {TW_CPU, TW_CUDA}) {
    for (const Kernel* kernel : kernels(device_type)) {
      if (names_kernel(parts.c_str(), kernel->name)) return;
    }
  }
  fail(ExitCode::usage, "--kernel: no kernel is named {}; `tilewise info` lists them", in_quotes(parts));
}

}  // namespace tilewise::cli
