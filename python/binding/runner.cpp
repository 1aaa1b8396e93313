#include "binding/runner.h"

#include "binding/host_threads.h"
#include "binding/lock.h"

namespace tilewise::python {
namespace {

// Calls without Python's lock.
template <class Call>
tw_status unlocked(Call call) {
  PyThreadState* const state = PyEval_SaveThread();
  const tw_status status = call();
  tilewise_take_lock(state);
  return status;
}

// A call of some tens of microseconds or more lets others run Python meanwhile. To give the lock away and take it back
// costs a tenth of one, and more where others want it, so that a shorter call keeps it.
template <class Call>
void run_on_cpu(double multiply_adds, Call call) {
  constexpr double kLong = 1e6;
  if (multiply_adds < kLong) return check(call());
  check(unlocked(call));
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// As a real number: nothing has checked the extents yet.
template <class... Extents>
double product(Extents... extents) {
  return (1.0 * ... * static_cast<double>(extents));
}

double multiply_adds_of(const tw_attention& problem) {
  const int64_t *q = problem.q.shape, *k = problem.k.shape, *v = problem.v.shape;
  const double pairs = product(q[0], q[1], q[2], k[1]);
  return product(pairs, q[3]) + product(pairs, v[3]);
}

}  // namespace

Runner::Runner(Arrays& arrays, uintptr_t openmp, nb::handle allocate, nb::handle q) : Runner(arrays, openmp) {
  if (!allocate.is_none()) allocate_ = allocate, q_ = q;
}

Runner::Runner(Arrays& arrays, uintptr_t openmp) : arrays_(arrays) {
  TW_INIT(exec_);
  if (arrays.on_gpu()) {
    exec_.stream = arrays.stream();
  } else if (openmp) {
    pool_ = threads_of_openmp(openmp);
    exec_.pool = &pool_;
  }
}

// On a GPU always without the lock: where the stream is full a launch waits, maybe for a callback of Python's.
void Runner::attention(const tw_attention& problem, const tw_attention_grad* grad) {
  const auto one_shot = [&] {
    return grad ? tw_attention_backward(&problem, grad, &exec_) : tw_attention_forward(&problem, &exec_);
  };
  if (!arrays_.on_gpu()) return run_on_cpu(multiply_adds_of(problem), one_shot);
  if (!allocate_.is_valid()) return check(unlocked(one_shot));
  if (grad) return plan_and_run(problem, grad);
  // Most forwards need no workspace. With an empty one a call says whether it does, and planning is saved.
  exec_.workspace = problem.q.data;
  const tw_status status = unlocked(one_shot);
  if (status == TW_WORKSPACE_TOO_SMALL) return plan_and_run(problem, grad);
  check(status);
}

void Runner::plan_and_run(const tw_attention& problem, const tw_attention_grad* grad) {
  tw_plan plan;
  check(unlocked([&] { return tw_attention_plan(&problem, grad, &plan); }));
  if (plan.workspace_bytes > 0) {
    const nb::object workspace = allocate_(q_, plan.workspace_bytes);
    exec_.workspace = arrays_.read(workspace, {.name = "workspace", .axes = 1}).data;
    exec_.workspace_bytes = plan.workspace_bytes;
  }
  check(unlocked([&] { return tw_attention_run(&plan, &problem, grad, &exec_); }));
}

void Runner::merge(const tw_merge& merge) {
  const auto call = [&] { return tw_attention_merge(&merge, &exec_); };
  if (arrays_.on_gpu()) return check(unlocked(call));
  const int64_t* shape = merge.out.shape;
  run_on_cpu(product(merge.parts, shape[0], shape[1], shape[2], shape[3]), call);
}

}  // namespace tilewise::python
