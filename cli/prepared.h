// Prepared: a problem with its plan and workspace, ready to run any number of times.
#pragma once

#include <string>

#include "cli/buffer.h"
#include "cli/gpu.h"
#include "core/plan.h"

namespace tilewise::cli {

class Prepared {
 public:
  Prepared() = default;
  // Throws Failure with the library's own message.
  Prepared(const Problem& problem, const PlanOptions& options);

  void run() const;      // until it is done
  Status start() const;  // on a GPU: puts it onto the default stream

  const Problem& problem() const { return problem_; }
  const Plan& plan() const { return plan_; }
  // One worker computes in the calling thread, so its CPU time tells; more are timed by the wall clock.
  bool single_threaded() const { return plan_.settings.workers == 1; }
  bool on_gpu() const { return problem_.device_type == TW_CUDA; }

 private:
  Problem problem_;
  Plan plan_;
  Buffer workspace_;  // one of the two
  GpuMemory gpu_workspace_;
};

// Fails, naming --kernel, if no kernel's name has these parts; empty: not given.
void check_kernel_option(const std::string& parts);

}  // namespace tilewise::cli
