#include <cstdlib>
#include <cstring>

#include "api/exec.h"
#include "api/packed_plan.h"
#include "api/structs.h"
#include "core/backend.h"
#include "core/plan.h"
#include "core/rules.h"

namespace tilewise::api {
namespace {

constexpr uint64_t kWorkspaceAlignment = 256;

// The structs of a call, as this library knows them.
struct Call {
  tw_attention problem;
  tw_attention_grad grad;
  tw_exec exec;
  bool has_grad = false;

  const tw_attention_grad* grad_or_null() const { return has_grad ? &grad : nullptr; }
};

Status take_problem(const tw_attention* problem, const tw_attention_grad* grad, Call& call) {
  Status status = take("problem", problem, call.problem);
  call.has_grad = grad != nullptr;
  if (status.ok() && grad) status = take("grad", grad, call.grad);
  return status;
}

Status check_workspace(const tw_exec& exec, uint64_t needed, const Problem& problem) {
  if (exec.workspace_bytes < needed) {
    return failure(TW_WORKSPACE_TOO_SMALL, "exec.workspace_bytes is %llu: the plan needs %llu",
                   static_cast<unsigned long long>(exec.workspace_bytes), static_cast<unsigned long long>(needed));
  }
  if (needed > 0 && !exec.workspace) return failure(TW_INVALID_ARGUMENT, "exec.workspace is NULL");
  if (needed > 0 && reinterpret_cast<uintptr_t>(exec.workspace) % kWorkspaceAlignment != 0) {
    return failure(TW_INVALID_ARGUMENT, "exec.workspace is %p: it must be aligned to 256 bytes", exec.workspace);
  }
  Rules rules;
  if (needed > 0) check_workspace_apart(problem, exec.workspace, needed, rules);
  return rules.first_broken();
}

// `own_workspace`: the library's own, in the place of exec's. While a stream is captured its address means nothing yet,
// so that nobody may ask about it.
Status launch(const Plan& plan, const Problem& problem, const tw_exec& exec, void* own_workspace) {
  Launch launch;
  launch.workspace = static_cast<char*>(exec.workspace);
  if (problem.device_type == TW_CPU) {
    launch.parallel = parallel_of(exec);
  } else {
    launch.stream = exec.stream;
    launch.fault = exec.fault;
    if (Status status = cuda_backend()->check_memory(problem, launch); !status.ok()) return status;
  }
  if (own_workspace) launch.workspace = static_cast<char*>(own_workspace);
  return run_plan(plan, problem, launch);
}

// A workspace of one call: from malloc, or on a GPU in the order of the stream.
class OwnWorkspace {
 public:
  OwnWorkspace(const Problem& problem, const tw_exec& exec) : problem_(problem), stream_(exec.stream) {}
  OwnWorkspace(const OwnWorkspace&) = delete;
  OwnWorkspace& operator=(const OwnWorkspace&) = delete;
  ~OwnWorkspace() {
    if (memory_ && problem_.device_type == TW_CUDA) {
      cuda_backend()->release(problem_.device_index, stream_, memory_);
    } else {
      std::free(memory_);
    }
  }

  Status allocate(uint64_t bytes, void*& memory) {
    if (bytes > 0 && problem_.device_type == TW_CUDA) {
      const Status status = cuda_backend()->allocate(problem_.device_index, stream_, bytes, &memory_);
      if (!status.ok()) return status;
    } else if (bytes > 0 && posix_memalign(&memory_, kWorkspaceAlignment, bytes) != 0) {
      return failure(TW_OUT_OF_MEMORY, "no memory for a workspace of %llu bytes",
                     static_cast<unsigned long long>(bytes));
    }
    memory = memory_;
    return {};
  }

 private:
  const Problem& problem_;
  void* stream_;
  void* memory_ = nullptr;
};

// What a thread's last one-shot call has loaded. Code stays where it is, and to ask the driver for it again takes as
// long as all rules of a call.
class LastLoaded {
 public:
  Status load(const Plan& plan, const Problem& problem) {
    if (!plan.kernel->load) return {};
    tw_plan packed;  // equal plans start the same code: a run may come with any problem that they serve
    pack(problem, plan, packed);
    if (std::memcmp(&packed, &plan_, sizeof packed) == 0) return {};
    const Status status = load_plan(plan, problem);
    if (status.ok()) plan_ = packed;
    return status;
  }
  void forget() { plan_ = {}; }

 private:
  tw_plan plan_ = {};
};
thread_local LastLoaded last_loaded;

Status load_and_launch(const Plan& plan, const Problem& problem, const tw_exec& exec, void* own_workspace) {
  if (Status status = last_loaded.load(plan, problem); !status.ok()) return status;
  const Status status = launch(plan, problem, exec, own_workspace);
  if (status.code == TW_DEVICE_ERROR) last_loaded.forget();  // the device may have been reset
  return status;
}

Status plan_call(const tw_attention* given, const tw_attention_grad* grad, tw_plan* packed) {
  if (!packed) return failure(TW_INVALID_ARGUMENT, "plan is NULL");
  Call call;
  Problem problem;
  Plan plan;
  if (Status status = take_problem(given, grad, call); !status.ok()) return status;
  if (Status status = make_problem(call.problem, call.grad_or_null(), false, problem); !status.ok()) return status;
  if (Status status = make_plan(problem, {}, plan); !status.ok()) return status;
  pack(problem, plan, *packed);
  return {};
}

Status run_call(const tw_plan* packed, const tw_attention* given, const tw_attention_grad* grad, const tw_exec* exec) {
  if (!packed) return failure(TW_INVALID_ARGUMENT, "plan is NULL");
  Call call;
  Problem problem;
  Plan plan;
  if (Status status = take_problem(given, grad, call); !status.ok()) return status;
  if (Status status = take_exec(exec, call.problem.device_type, call.exec); !status.ok()) return status;
  if (Status status = make_problem(call.problem, call.grad_or_null(), true, problem); !status.ok()) return status;
  if (Status status = unpack(*packed, problem, plan); !status.ok()) return status;
  if (Status status = check_workspace(call.exec, packed->workspace_bytes, problem); !status.ok()) return status;
  return launch(plan, problem, call.exec, nullptr);
}

Status one_shot(const tw_attention* given, const tw_attention_grad* grad, const tw_exec* exec) {
  Call call;
  Problem problem;
  Plan plan;
  if (Status status = take_problem(given, grad, call); !status.ok()) return status;
  if (Status status = take_exec(exec, call.problem.device_type, call.exec); !status.ok()) return status;
  if (Status status = make_problem(call.problem, call.grad_or_null(), true, problem); !status.ok()) return status;
  if (Status status = choose_plan(problem, {}, plan); !status.ok()) return status;
  const uint64_t needed = plan.sizing.workspace_bytes;
  if (call.exec.workspace) {
    if (Status status = check_workspace(call.exec, needed, problem); !status.ok()) return status;
    return load_and_launch(plan, problem, call.exec, nullptr);
  }
  OwnWorkspace own(problem, call.exec);
  void* workspace = nullptr;
  if (Status status = own.allocate(needed, workspace); !status.ok()) return status;
  return load_and_launch(plan, problem, call.exec, workspace);
}

}  // namespace
}  // namespace tilewise::api

namespace api = tilewise::api;

extern "C" {

tw_status tw_attention_plan(const tw_attention* problem, const tw_attention_grad* grad, tw_plan* plan) {
  return api::report(api::plan_call(problem, grad, plan));
}

tw_status tw_attention_run(const tw_plan* plan, const tw_attention* problem, const tw_attention_grad* grad,
                           const tw_exec* exec) {
  return api::report(api::run_call(plan, problem, grad, exec));
}

tw_status tw_attention_forward(const tw_attention* problem, const tw_exec* exec) {
  return api::report(api::one_shot(problem, nullptr, exec));
}

tw_status tw_attention_backward(const tw_attention* problem, const tw_attention_grad* grad, const tw_exec* exec) {
  if (!grad) return api::report(tilewise::failure(TW_INVALID_ARGUMENT, "grad is NULL"));
  return api::report(api::one_shot(problem, grad, exec));
}

const char* tw_plan_kernel(const tw_plan* plan) {
  const tilewise::Kernel* kernel = plan ? api::kernel_of(*plan) : nullptr;
  return kernel ? kernel->name : "none";
}

}  // extern "C"
