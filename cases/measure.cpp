#include "cases/measure.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "cases/device_copy.h"
#include "cases/rounding.h"
#include "core/backend.h"
#include "cpu/reference/reference.h"

namespace tilewise::cases {
namespace {

constexpr uint64_t kAlignment = 256;
#if defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kGuard = 0;  // the sanitizer sees what lies behind the workspace itself
#else
constexpr uint64_t kGuard = 256;
#endif

// Exactly so many bytes, full of NaN, and a guard behind them that shows who wrote too far.
class Workspace {
 public:
  explicit Workspace(uint64_t bytes) : bytes_(bytes) {
    void* place = nullptr;
    if (posix_memalign(&place, kAlignment, std::max(bytes + kGuard, kAlignment))) return;
    data_.reset(static_cast<char*>(place));
    std::memset(place, 0xff, bytes + kGuard);
  }

  char* data() const { return data_.get(); }  // null: no memory
  bool guard_is_whole() const {
    const char* guard = data() + bytes_;
    return std::all_of(guard, guard + kGuard, [](char c) { return c == '\xff'; });
  }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  uint64_t bytes_;
  std::unique_ptr<char, Free> data_;
};

Status problem_of(const CaseData& data, Pass pass, int32_t device_type, const Outputs& outputs, Problem& problem) {
  tw_attention attention = data.attention(outputs, pass);
  attention.device_type = device_type;
  if (pass == Pass::forward) return make_problem(attention, nullptr, true, problem);
  const tw_attention_grad gradients = data.gradients(outputs);
  return make_problem(attention, &gradients, true, problem);
}

// The same problem with other memory behind its outputs.
Problem redirect(Problem problem, const Outputs& to) {
  problem.out = to.out.tensor();
  if (problem.lse) problem.lse = to.lse.tensor();
  problem.dq = to.dq.tensor(), problem.dk = to.dk.tensor(), problem.dv = to.dv.tensor();
  problem.dbias = to.dbias.tensor(), problem.dsink = to.dsink.tensor();
  return problem;
}

template <class Real>
Status run_reference(const Problem& problem, Type stored) {
  Settings settings;
  settings.workers = available_cores();
  const Workspace workspace(cpu::reference::workspace_bytes<Real>(problem, settings));
  if (!workspace.data()) return failure(TW_OUT_OF_MEMORY, "no memory for the reference's workspace");
  Launch launch;
  launch.workspace = workspace.data(), launch.parallel = own_threads();
  const cpu::reference::Reference<Real> reference(problem, stored, settings, launch);
  problem.pass == Pass::forward ? reference.forward() : reference.backward();
  return {};
}

// False if some number overflowed the type.
bool holds(const Outputs& outputs, const Outputs& exact, Pass pass) {
  bool all = true;
  for (const auto& [name, output] : outputs_of(pass)) {
    const Stored &got = outputs.*output, &want = exact.*output;
    got.each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
      all = all && (std::isfinite(got.at(a, b, c, d)) || !std::isfinite(want.at(a, b, c, d)));
    });
  }
  return all;
}

// Standard attention; where the type of q cannot hold the scores, they lie in memory as fp32.
Status run_standard(const CaseData& data, const Problem& problem, const Outputs& exact, Outputs& standard) {
  const Outputs start = standard;
  if (Status status = run_reference<float>(redirect(problem, standard), problem.type); !status.ok()) return status;
  if (holds(standard, exact, problem.pass)) return {};
  standard = data.dense_outputs({});
  if (problem.pass == Pass::backward) standard.out = start.out, standard.lse = start.lse;
  return run_reference<float>(redirect(problem, standard), Type::f32);
}

// What a forward gives to its backward; rows that no sequence owns stay poison.
void give(const CaseData& data, const Stored& from, Stored& to, bool is_lse) {
  const Case& c = data.description();
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t i = 0; i < c.rows(b); ++i)
      for (int64_t h = 0; h < c.heads; ++h) {
        const int64_t slot = data.q_slot(b), row = data.q_row(b, i);
        for (int64_t d = 0; d < to.shape()[3]; ++d) {
          const int64_t second = is_lse ? h : row, third = is_lse ? row : h;
          to.set(from.at(slot, second, third, d), slot, second, third, d);
        }
      }
}

Status run_on_cpu(const Plan& plan, const Problem& problem, const RunOptions& options) {
  const Workspace workspace(plan.sizing.workspace_bytes);
  if (!workspace.data())
    return failure(TW_OUT_OF_MEMORY, "no memory for a workspace of %llu bytes",
                   static_cast<unsigned long long>(plan.sizing.workspace_bytes));
  Launch launch;
  launch.workspace = workspace.data();
  launch.parallel = options.pool ? *options.pool : own_threads();
  if (Status status = run_plan(plan, problem, launch); !status.ok()) return status;
  return workspace.guard_is_whole() ? Status() : failure(TW_INTERNAL, "%s wrote past its workspace", plan.kernel->name);
}

Status run_on_gpu(const Plan& plan, Problem problem) {
  DeviceCopy copy(problem, plan.sizing.workspace_bytes);
  if (!copy.status().ok()) return copy.status();
  Launch launch;
  launch.workspace = copy.workspace();
  launch.fault = copy.fault();
  Status status = cuda_backend()->check_memory(problem, launch);
  if (status.ok()) status = run_plan(plan, problem, launch);
  const Status fetched = copy.fetch();
  return status.ok() ? fetched : status;
}

}  // namespace

Status run_exact(const CaseData& data, Pass pass, const Outputs& exact) {
  Problem problem;
  const Outputs asked = data.outputs();
  if (Status status = problem_of(data, pass, TW_CPU, asked, problem); !status.ok()) return status;
  return run_reference<double>(redirect(problem, exact), Type::f64);
}

Status expect(const CaseData& data, Expected& expected) {
  expected.exact = data.dense_outputs(Type::f64);
  expected.standard = data.dense_outputs({});
  expected.rounding = data.zero_outputs();
  const Outputs asked = data.outputs();
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    if (pass == Pass::backward && !data.description().backward) break;
    Problem problem;
    if (Status status = problem_of(data, pass, TW_CPU, asked, problem); !status.ok()) return status;
    if (Status status = run_exact(data, pass, expected.exact); !status.ok()) return status;
    if (Status status = run_standard(data, problem, expected.exact, expected.standard); !status.ok()) return status;
    bound_rounding(redirect(problem, expected.exact), rounding_unit(data), expected.rounding);
  }
  return {};
}

Outputs backward_outputs(const CaseData& data, const Outputs& forward) {
  Outputs outputs = data.outputs();
  give(data, forward.out, outputs.out, false);
  give(data, forward.lse, outputs.lse, true);
  return outputs;
}

const Kernel* forward_of(const Kernel& backward) {
  const std::string name = backward.name, family = name.substr(0, name.rfind('.'));
  for (const Kernel* kernel : kernels(backward.device_type))
    if (kernel->pass == Pass::forward && family + ".forward" == kernel->name) return kernel;
  return nullptr;
}

Status run_problem(Problem problem, const RunOptions& options, Plan& plan) {
  if (options.threads > 0) problem.threads = options.threads;
  PlanOptions plan_options;
  plan_options.force = options.kernel, plan_options.fast_memory = options.fast_memory;
  if (Status status = make_plan(problem, plan_options, plan); !status.ok()) return status;
  return problem.device_type == TW_CUDA ? run_on_gpu(plan, problem) : run_on_cpu(plan, problem, options);
}

Status run_case(const CaseData& data, Pass pass, const RunOptions& options, const Outputs& outputs, Plan& plan) {
  Problem problem;
  if (Status status = problem_of(data, pass, options.device_type, outputs, problem); !status.ok()) return status;
  return run_problem(problem, options, plan);
}

}  // namespace tilewise::cases
