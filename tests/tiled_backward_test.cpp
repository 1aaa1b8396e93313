// What the tiled backward promises beyond right results (kernels_test and contract_test check those): absent gradients,
// sums, biases that repeat over chunks of keys, NaN where it belongs, workspace.
#include <string>

#include "backward_call.h"
#include "tiled_kernels.h"

namespace tilewise::backward {
namespace {

class TiledBackward : public testing::TestWithParam<const Kernel*> {
 protected:
  void SetUp() override {
    Plan plan;
    PlanOptions options;
    options.force = kernel_;
    const Status status = make_plan(problem_of(Call({1, 1, 1, 1, 1, 4, 4}), true), options, plan);
    if (!status.ok()) GTEST_SKIP() << status.message.chars;
  }

  void expect_as_reference(const Call& call, double tolerance = 2e-6) {
    run(problem_of(call, false), "reference");
    const Gradients theirs = gradients_by(call, "reference");
    expect_close(gradients_by(call, kernel_), theirs, tolerance);
  }

  const char* const kernel_ = GetParam()->name;
};

INSTANTIATE_TEST_SUITE_P(, TiledBackward, testing::ValuesIn(tiled_kernels(Pass::backward)), isa_of_tiled);

TEST_P(TiledBackward, AbsentGradientsAreNotMissed) {
  Call call({1, 50, 900, 2, 1, 16, 8});
  set_bias(call), set_sink(call);
  run(problem_of(call, false), "reference");
  const Gradients all = gradients_by(call, kernel_);
  const tw_attention_grad full = call.g;
  for (int present = 0; present < 32; ++present) {
    call.g = full;
    tw_tensor* tensors[] = {&call.g.dq, &call.g.dk, &call.g.dv, &call.g.dbias, &call.g.dsink};
    Gradients expected = all;
    for (int t = 0; t < 5; ++t) {
      if (present >> t & 1) continue;
      *tensors[t] = {};
      expected[t].values.clear();
    }
    if (present == 0) continue;
    expect_same_bits(gradients_by(call, kernel_), expected);
  }
}

TEST_P(TiledBackward, AddsToGradients) {
  for (const Shape& shape : {Shape{2, 30, 40, 4, 2, 9, 5}, Shape{1, 100, 900, 1, 1, 16, 8}}) {
    Call call(shape);
    set_window(call);
    run(problem_of(call, false), "reference");
    Gradients expected = gradients_by(call, "reference");
    tw_tensor* tensors[] = {&call.g.dq, &call.g.dk, &call.g.dv};
    for (int t = 0; t < 3; ++t) {
      *tensors[t] =
          call.uniform(TW_F32, tensors[t]->shape[0], tensors[t]->shape[1], tensors[t]->shape[2], tensors[t]->shape[3]);
      const std::vector<float> before = values_of(*tensors[t]);
      for (size_t i = 0; i < before.size(); ++i) expected[t].values[i] += before[i];
    }
    call.g.flags = TW_GRAD_ACCUMULATE;
    expect_close(gradients_by(call, kernel_), expected, 2e-6);
  }
}

TEST_P(TiledBackward, BiasThatRepeats) {
  const Shape shape{3, 130, 900, 4, 2, 8, 8};
  for (int repeated = 0; repeated < 16; ++repeated) {
    Call call(shape);
    set_window(call);
    const auto extent = [&](int axis, int64_t n) { return repeated >> axis & 1 ? 1 : n; };
    const int64_t b = extent(0, 3), h = extent(1, 4), i = extent(2, 130), j = extent(3, 900);
    call.a.bias = call.uniform(TW_F32, b, h, i, j);
    call.g.dbias = call.filled(TW_F32, NAN, b, h, i, j);
    call.g.dq = call.g.dk = call.g.dv = {};
    SCOPED_TRACE(testing::Message() << b << " " << h << " " << i << " " << j);
    expect_as_reference(call, j == 1 ? 1e-4 : 5e-6);  // over all keys of a row the sum is 0
  }
}

// A block of dbias has 1056 keys. With dlse the sum over all keys of a row is not 0.
TEST_P(TiledBackward, BiasThatRepeatsOverBlocksOfKeys) {
  Call call({1, 20, 1100, 2, 1, 8, 8});
  call.a.bias = call.uniform(TW_F32, 1, 2, 20, 1);
  call.g.dbias = call.filled(TW_F32, NAN, 1, 2, 20, 1);
  call.g.dlse = call.uniform(TW_F32, 1, 2, 20, 1);
  expect_as_reference(call, 5e-6);
}

// Rows that saw nothing may hold anything, and keys that no row uses get exactly 0.
TEST_P(TiledBackward, RowsWithoutKeysGiveNothing) {
  Call call({1, 100, 60, 1, 1, 8, 8});
  call.a.flags = TW_CAUSAL;  // rows 0..39 stand before the first key
  call.a.key_end = call.filled(TW_I32, 50, 1, 1, 1, 1);
  call.a.key_end.shape[2] = 100, call.a.key_end.stride[2] = 0;
  run(problem_of(call, false), "reference");
  for (const tw_tensor& t : {call.a.q, call.a.out, call.g.dout})
    std::fill_n(static_cast<float*>(t.data), 40 * t.stride[1], NAN);
  const Gradients ours = gradients_by(call, kernel_);
  EXPECT_TRUE(std::all_of(ours[0].values.begin(), ours[0].values.begin() + 40 * 8, [](float x) { return x == 0; }));
  for (int t : {1, 2}) {
    const std::vector<float>& x = ours[t].values;
    EXPECT_TRUE(std::all_of(x.begin(), x.begin() + 50 * 8, [](float x) { return std::isfinite(x) && x != 0; }));
    EXPECT_TRUE(std::all_of(x.begin() + 50 * 8, x.end(), [](float x) { return x == 0; }));
  }
}

// A NaN in a query reaches the row of dq that it belongs to, and in dk, dv no less than in the reference.
TEST_P(TiledBackward, NanReachesItsRow) {
  for (const cases::Option option : cases::all_options()) {
    cases::Case c;
    c.batch = 2, c.seqlen_q = 9, c.seqlen_k = 11, c.heads = 2, c.head_dim = c.value_dim = 8;
    option(c);
    if (!c.backward) continue;
    c.fp32_gradients = c.accumulate;
    SCOPED_TRACE(c.name());
    cases::CaseData data(c);
    data.q.set(NAN, 0, 3, 0, 3);
    Plan plan;
    const cases::Outputs forward = data.outputs();
    ASSERT_TRUE(cases::run_case(data, Pass::forward, {.kernel = "reference"}, forward, plan).ok());
    const cases::Outputs theirs = cases::backward_outputs(data, forward), ours = cases::backward_outputs(data, forward);
    ASSERT_TRUE(cases::run_case(data, Pass::backward, {.kernel = "reference"}, theirs, plan).ok());
    ASSERT_TRUE(cases::run_case(data, Pass::backward, {.kernel = kernel_}, ours, plan).ok());
    ours.dq.each([&](int64_t b, int64_t i, int64_t h, int64_t d) {
      EXPECT_EQ(std::isnan(ours.dq.at(b, i, h, d)), std::isnan(theirs.dq.at(b, i, h, d))) << "dq " << i;
    });
    for (cases::Stored cases::Outputs::*gradient : {&cases::Outputs::dk, &cases::Outputs::dv})
      ours.dk.each([&](int64_t b, int64_t j, int64_t h, int64_t d) {
        if (std::isnan((theirs.*gradient).at(b, j, h, d))) EXPECT_TRUE(std::isnan((ours.*gradient).at(b, j, h, d)));
      });
  }
}

TEST_P(TiledBackward, WorkspaceGrowsWithTheProblem) {
  uint64_t before = 0;
  for (int64_t n = 1; n < 5000; n += 1 + n / 7) {
    Call call({1, 1, 1, 4, 2, 24, 24}, TW_F16);
    for (tw_tensor* t :
         {&call.a.q, &call.a.k, &call.a.v, &call.a.out, &call.g.dout, &call.g.dq, &call.g.dk, &call.g.dv})
      t->shape[1] = n;
    call.a.lse.shape[2] = n;
    Problem problem;
    ASSERT_TRUE(make_problem(call.a, &call.g, false, problem).ok());
    const uint64_t bytes = plan_of(problem, kernel_).sizing.workspace_bytes;
    EXPECT_GE(bytes, before) << n;
    before = bytes;
  }
}

}  // namespace
}  // namespace tilewise::backward
