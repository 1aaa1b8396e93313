// What the tests of the contract's lines share: running a kernel on a case, and comparing bits.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "cases/measure.h"

namespace tilewise::cases {

inline std::vector<const Kernel*> kernels_here(Pass pass) {
  std::vector<const Kernel*> found;
  for (const Kernel* kernel : kernels(TW_CPU)) {
    Text why_not;
    if (kernel->pass == pass && kernel->runs_on(0, why_not)) found.push_back(kernel);
  }
  return found;
}

inline Outputs run_forward(const CaseData& data, const Kernel& kernel, RunOptions options = {}) {
  options.kernel = kernel.name;
  Outputs outputs = data.outputs();
  Plan plan;
  const Status status = run_case(data, Pass::forward, options, outputs, plan);
  EXPECT_TRUE(status.ok()) << kernel.name << ": " << status.message.chars;
  return outputs;
}

// After the forward of the same family.
inline Outputs run_backward(const CaseData& data, const Kernel& kernel, RunOptions options = {}) {
  const Kernel* forward = forward_of(kernel);
  EXPECT_NE(forward, nullptr);
  Outputs outputs = backward_outputs(data, run_forward(data, *forward, options));
  options.kernel = kernel.name;
  Plan plan;
  const Status status = run_case(data, Pass::backward, options, outputs, plan);
  EXPECT_TRUE(status.ok()) << kernel.name << ": " << status.message.chars;
  return outputs;
}

inline Outputs run(const CaseData& data, const Kernel& kernel, const RunOptions& options = {}) {
  return kernel.pass == Pass::forward ? run_forward(data, kernel, options) : run_backward(data, kernel, options);
}

// A call that no case describes.
inline Status run_call(const tw_attention& attention, const tw_attention_grad* gradients, const Kernel& kernel) {
  Problem problem;
  if (Status status = make_problem(attention, gradients, true, problem); !status.ok()) return status;
  Plan plan;
  return run_problem(problem, {.kernel = kernel.name}, plan);
}

// f(kernel) for every kernel of both passes, with its name in messages.
template <class F>
void each_kernel(F f) {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (const Kernel* kernel : kernels_here(pass)) {
      SCOPED_TRACE(kernel->name);
      f(*kernel);
    }
  }
}

template <class F>
void each_kernel(Pass pass, F f) {
  each_kernel([&](const Kernel& kernel) {
    if (kernel.pass == pass) f(kernel);
  });
}

inline bool same_bits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

// The elements, whatever their strides.
inline void expect_same(const Stored& a, const Stored& b) {
  ASSERT_EQ(a.shape(), b.shape());
  int64_t different = 0;
  a.each(
      [&](int64_t i, int64_t j, int64_t k, int64_t l) { different += !same_bits(a.at(i, j, k, l), b.at(i, j, k, l)); });
  EXPECT_EQ(different, 0);
}

inline void expect_same(const Outputs& a, const Outputs& b, Pass pass) {
  for (const auto& [name, output] : outputs_of(pass)) {
    SCOPED_TRACE(name);
    if (a.*output) expect_same(a.*output, b.*output);
  }
}

inline double largest_difference(const Stored& a, const Stored& b) {
  double most = 0;
  a.each([&](int64_t i, int64_t j, int64_t k, int64_t l) {
    const double x = a.at(i, j, k, l), y = b.at(i, j, k, l);
    if (x != y) most = std::max(most, std::isfinite(x - y) ? std::abs(x - y) : INFINITY);
  });
  return most;
}

}  // namespace tilewise::cases
