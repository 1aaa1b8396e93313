// The tiled backward, in each instruction set: against the reference, against finite differences, and its promises
// (same bits at any number of threads, absent gradients, sums, dead memory, workspace).
#include <string>

#include "backward_call.h"

namespace tilewise::backward {
namespace {

class TiledBackward : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    Plan plan;
    PlanOptions options;
    options.force = GetParam();
    const Status status = make_plan(problem_of(Call({1, 1, 1, 1, 1, 4, 4}), true), options, plan);
    if (!status.ok()) GTEST_SKIP() << status.message.chars;
  }

  void expect_as_reference(const Call& call, double tolerance = 2e-6) {
    run(problem_of(call, false), "reference");
    const Gradients theirs = gradients_by(call, "reference");
    expect_close(gradients_by(call, GetParam()), theirs, tolerance);
  }
};

INSTANTIATE_TEST_SUITE_P(, TiledBackward, testing::Values("cpu.tiled.avx2", "cpu.tiled.portable"),
                         [](const auto& param) { return std::string(param.param + std::strlen("cpu.tiled.")); });

TEST_P(TiledBackward, EveryHeadDim) {
  for (int64_t dim = 1; dim <= 40; ++dim) expect_as_reference(Call({1, 7, 9, 2, 1, dim, 41 - dim}));
  for (int64_t dim : {64, 80, 128, 129, 256, 300, 512}) expect_as_reference(Call({1, 30, 50, 1, 1, dim, dim}));
}

TEST_P(TiledBackward, EveryLength) {
  for (int64_t length = 1; length <= 110; length += length < 30 ? 1 : 7) {
    Call call({2, length, 120 - length, 2, 2, 8, 8});
    for (int flags : {0, +TW_CAUSAL, TW_CAUSAL | TW_TOP_LEFT}) {
      call.a.flags = static_cast<uint32_t>(flags);
      expect_as_reference(call);
    }
  }
}

TEST_P(TiledBackward, EveryOption) {
  for (const Option& option : kOptions) {
    for (const Shape& shape :
         {Shape{2, 5, 7, 2, 1, 4, 3}, Shape{2, 130, 111, 4, 2, 20, 12}, {2, 40, 900, 2, 2, 8, 8}}) {
      SCOPED_TRACE(testing::Message() << option.name << ", rows " << shape.rows);
      Call call(shape);
      option.set(call);
      expect_as_reference(call);
    }
  }
}

// The loss sum(dout * out) + sum(dlse * lse), in double.
class Loss {
 public:
  explicit Loss(const Call& call) : forward_(problem_of(call, false)), backward_(problem_of(call, true)) {
    for (Tensor* t :
         {&forward_.q, &forward_.k, &forward_.v, &forward_.out, &forward_.lse, &forward_.bias, &forward_.sink})
      if (*t) widen(*t);
    for (Tensor* t : {&backward_.dout, &backward_.dlse})
      if (*t) widen(*t);
  }

  double derivative(const Tensor& input, int64_t element) {
    double& x = reinterpret_cast<double*>(input.data)[element];
    const double at = x, step = 1e-5;
    x = at + step;
    const double above = value();
    x = at - step;
    const double below = value();
    x = at;
    return (above - below) / (2 * step);
  }

  const Problem& inputs() const { return forward_; }

 private:
  void widen(Tensor& t) {
    const int64_t count = t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3];
    wide_.emplace_back(count);
    cpu::read_values(t, 0, count, wide_.back().data());
    t.data = reinterpret_cast<char*>(wide_.back().data()), t.type = Type::f64;
  }

  double value() {
    run(forward_, "reference");
    return weighted(backward_.dout, forward_.out) + weighted(backward_.dlse, forward_.lse);
  }

  static double weighted(const Tensor& weight, const Tensor& x) {
    double sum = 0;
    for (int64_t i = 0; weight && i < x.shape[0] * x.shape[1] * x.shape[2] * x.shape[3]; ++i) {
      const double value = reinterpret_cast<const double*>(x.data)[i];
      if (std::isfinite(value)) sum += reinterpret_cast<const double*>(weight.data)[i] * value;
    }
    return sum;
  }

  Problem forward_, backward_;
  std::deque<std::vector<double>> wide_;
};

TEST_P(TiledBackward, EveryOptionByFiniteDifferences) {
  for (const Option& option : kOptions) {
    SCOPED_TRACE(option.name);
    Call call({2, 4, 5, 2, 1, 3, 2});
    option.set(call);
    run(problem_of(call, false), "reference");
    const Gradients ours = gradients_by(call, GetParam());
    Loss loss(call);
    const Problem& p = loss.inputs();
    const Tensor* inputs[] = {&p.q, &p.k, &p.v, &p.bias, &p.sink};
    for (size_t t = 0; t < ours.size(); ++t)
      for (size_t i = 0; i < ours[t].values.size(); ++i)
        EXPECT_NEAR(ours[t].values[i], loss.derivative(*inputs[t], static_cast<int64_t>(i)), 2e-6)
            << ours[t].name << " at " << i;
  }
}

// ---- What is promised beyond the numbers.

TEST_P(TiledBackward, SameBitsAtAnyNumberOfThreads) {
  for (const Option& option : kOptions) {
    SCOPED_TRACE(option.name);
    Call call({2, 200, 900, 4, 2, 16, 8}, TW_BF16);
    option.set(call);
    run(problem_of(call, false), "reference");
    call.a.threads = 1;
    const Gradients one = gradients_by(call, GetParam());
    for (call.a.threads = 2; call.a.threads <= 8; ++call.a.threads)
      expect_same_bits(gradients_by(call, GetParam()), one);
  }
}

TEST_P(TiledBackward, AbsentGradientsAreNotMissed) {
  Call call({1, 50, 900, 2, 1, 16, 8});
  set_bias(call), set_sink(call);
  run(problem_of(call, false), "reference");
  const Gradients all = gradients_by(call, GetParam());
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
    expect_same_bits(gradients_by(call, GetParam()), expected);
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
    expect_close(gradients_by(call, GetParam()), expected, 2e-6);
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

TEST_P(TiledBackward, BiasWithoutRowsOrKeys) {
  for (const Shape& shape : {Shape{2, 5, 0, 2, 1, 8, 8}, Shape{2, 0, 5, 2, 1, 8, 8}}) {
    Call call(shape);
    call.a.bias = call.uniform(TW_F32, 1, 2, 1, 1);
    call.g.dbias = call.filled(TW_F32, NAN, 1, 2, 1, 1);
    expect_as_reference(call);
  }
}

TEST_P(TiledBackward, SixteenBitTypes) {
  for (int32_t type : {TW_F16, TW_BF16}) {
    Call call({2, 70, 900, 4, 2, 20, 12}, type);
    call.a.bias = call.uniform(type, 1, 4, 70, 900);
    call.g.dbias = call.filled(type, NAN, 1, 4, 70, 900);
    expect_as_reference(call, type == TW_F16 ? 0x1p-11 : 0x1p-8);  // one step of the type
    call.g.dq = call.filled(TW_F32, NAN, 2, 70, 4, 20);
    call.g.dv = call.filled(TW_F32, NAN, 2, 900, 2, 12);
    expect_as_reference(call, type == TW_F16 ? 0x1p-11 : 0x1p-8);
  }
}

TEST_P(TiledBackward, DeadMemoryNeverMatters) {
  Call call({2, 60, 120, 2, 1, 12, 8});
  set_lengths(call), set_left_pad(call);
  run(problem_of(call, false), "reference");
  const Gradients expected = gradients_by(call, "reference");
  for (int64_t b = 0; b < 2; ++b) {
    const auto poison = [&](const tw_tensor& t, int64_t begin, int64_t end) {
      float* first = static_cast<float*>(t.data) + b * t.stride[0];
      std::fill(first + begin * t.stride[1], first + end * t.stride[1], NAN);
    };
    const int64_t rows = static_cast<const int32_t*>(call.a.seqused_q.data)[b];
    for (const tw_tensor& t : {call.a.q, call.a.out, call.g.dout}) poison(t, rows, 60);
    for (const tw_tensor& t : {call.a.k, call.a.v}) {
      poison(t, 0, static_cast<const int32_t*>(call.a.leftpad_k.data)[b]);
      poison(t, static_cast<const int32_t*>(call.a.seqused_k.data)[b], 120);
    }
  }
  expect_close(gradients_by(call, GetParam()), expected, 2e-6);
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
  const Gradients ours = gradients_by(call, GetParam());
  EXPECT_TRUE(std::all_of(ours[0].values.begin(), ours[0].values.begin() + 40 * 8, [](float x) { return x == 0; }));
  for (int t : {1, 2}) {
    const std::vector<float>& x = ours[t].values;
    EXPECT_TRUE(std::all_of(x.begin(), x.begin() + 50 * 8, [](float x) { return std::isfinite(x) && x != 0; }));
    EXPECT_TRUE(std::all_of(x.begin() + 50 * 8, x.end(), [](float x) { return x == 0; }));
  }
}

TEST_P(TiledBackward, NanReachesItsRow) {
  for (const Option& option : kOptions) {
    SCOPED_TRACE(option.name);
    Call call({2, 9, 11, 2, 1, 8, 8});
    option.set(call);
    run(problem_of(call, false), "reference");
    static_cast<float*>(call.a.q.data)[call.a.q.stride[1] * 7 + 3] = NAN;
    const Gradients theirs = gradients_by(call, "reference"), ours = gradients_by(call, GetParam());
    for (size_t i = 0; i < ours[0].values.size(); ++i)
      EXPECT_EQ(std::isnan(ours[0].values[i]), std::isnan(theirs[0].values[i])) << "dq at " << i;
    for (int t : {1, 2})
      for (size_t i = 0; i < ours[t].values.size(); ++i)
        EXPECT_TRUE(std::isnan(ours[t].values[i]) || !std::isnan(theirs[t].values[i])) << ours[t].name << " at " << i;
  }
}

TEST_P(TiledBackward, PackedSequencesAndAnyStrides) {
  Call call({1, 100, 150, 2, 1, 8, 8});
  call.a.cu_seqlens_q = call.int32({0, 0, 31, 40, 90}, 5);
  call.a.cu_seqlens_k = call.int32({0, 20, 20, 65, 140}, 5);
  call.a.flags = TW_CAUSAL;
  expect_as_reference(call);
  call.g.dout.stride[1] = call.g.dout.stride[2] = 0;
  expect_as_reference(call);
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
    const uint64_t bytes = plan_of(problem, GetParam()).sizing.workspace_bytes;
    EXPECT_GE(bytes, before) << n;
    before = bytes;
  }
}

TEST_P(TiledBackward, ManySequencesAndHeads) {
  for (const Shape& shape : {Shape{70000, 2, 3, 1, 1, 4, 4}, Shape{1, 2, 3, 70000, 35000, 4, 4}}) {
    Call call(shape);
    expect_as_reference(call);
  }
}

}  // namespace
}  // namespace tilewise::backward
