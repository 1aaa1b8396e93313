// Calls written out by hand, for tests that each stand for one public bug report about an attention library: tensors
// that the test fills as the report does, run on every kernel. A test's name ends in the report's number; the comment
// names its repository.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cases/random.h"
#include "cases/stored.h"
#include "core/plan.h"
#include "run_or_skip.h"

namespace tilewise::reports {

using cases::Layout;
using cases::Random;
using cases::Shape;
using cases::Stored;

struct Sizes {
  int64_t batch = 1, seqlen_q = 1, seqlen_k = 1, heads = 1, heads_kv = 1, head_dim = 64, value_dim = 0;
};

inline constexpr double kInf = INFINITY;

// One call and its memory. Outputs begin as NaN; every test fills q, k, v and sets what it needs in `a`.
struct Call {
  Sizes sizes;
  Type type;
  Stored q, k, v, out, lse, dout, dq, dk, dv;
  tw_attention a;
  tw_attention_grad g;

  Call(Type type, Sizes sizes, Layout layout = Layout::rows_outside);

  void fill(Stored& t, double value);
  void fill_normal(uint64_t seed, double scale = 1);  // q, k, v and dout
  // Hands the tensors over as they are now, lets `adjust` have the last word and runs one kernel.
  std::function<void(tw_attention&, tw_attention_grad&)> adjust;
  Status forward(const char* kernel);
  Status backward(const char* kernel);  // reads out and lse

  // How exact an lse is: standard attention on a GPU keeps its scores in the type of q.
  Type lse_type() const { return rounds_scores_ ? type : Type::f32; }
  double lse_tolerance(double lse) const;

 private:
  Status run(const char* kernel, bool backward);
  bool rounds_scores_ = false;
};

int32_t device_of(std::string_view kernel);

Stored int32s(const std::vector<int64_t>& values);
Stored floats(const std::vector<double>& values);

// Largest |x - y| over all elements; infinite where just one is NaN or they are different infinities.
double difference(const Stored& x, const Stored& y);
double largest(const Stored& x);
double tolerance(Type type);  // of a number about 1
bool all_finite(const Stored& x);
bool same_bits(const Stored& x, const Stored& y);

// out and lse of one row.
void expect_row(const Call& c, int64_t b, int64_t i, int64_t h, double out, double lse, double allowed);
void expect_empty_row(const Call& c, int64_t b, int64_t i, int64_t h);
// out of the row is the mean of v over keys [lo, hi) of the kv head, lse is ln(hi - lo) + score.
void expect_mean(const Call& c, int64_t b, int64_t i, int64_t h, int64_t lo, int64_t hi, double score = 0);
// out, and after a backward dq, dk, dv, equal those of the reference kernel on the same call.
void expect_like_reference(Call& c, const char* kernel, bool backward = true);

// A call with bad numbers in a length or an offset: the CPU refuses it and names the tensor; a GPU records a fault.
void expect_bad_number(const Status& status, const char* tensor);

// Every kernel that runs here. A rung that refuses a problem by name skips the test.
class EveryKernel : public testing::TestWithParam<std::string> {
 protected:
  const char* kernel() const { return GetParam().c_str(); }
  bool on_gpu() const { return device_of(kernel()) == TW_CUDA; }
};
std::vector<std::string> kernels_here();
std::string test_name(const testing::TestParamInfo<std::string>& info);

}  // namespace tilewise::reports
