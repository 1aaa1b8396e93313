#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "cpu/common/sink_gradient.h"

namespace tilewise::cpu {
namespace {

constexpr int64_t kBatch = 2, kRows = 5, kHeads = 3, kDim = 7;

struct Case {
  std::vector<float> out, dout, lse, dlse, sink{0.5f, -INFINITY, 2}, dsink;
  Problem problem;

  Case() : out(numbers(kBatch * kRows * kHeads * kDim)), dout(numbers(out.size())), dsink(kHeads, NAN) {
    lse = numbers(kBatch * kHeads * kRows), dlse = numbers(lse.size());
    lse[3] = -INFINITY;
    problem.batch = kBatch, problem.heads = kHeads, problem.value_dim = kDim;
    problem.q.shape[1] = problem.max_rows = kRows;
    problem.out = rows(out), problem.dout = rows(dout);
    problem.lse = numbers_of_rows(lse), problem.dlse = numbers_of_rows(dlse);
    problem.sink = a_head(sink), problem.dsink = a_head(dsink);
  }

  static std::vector<float> numbers(int64_t count) {
    static std::mt19937 random(1);
    std::vector<float> x(count);
    for (float& value : x) value = std::uniform_real_distribution<float>(-1, 1)(random);
    return x;
  }
  static Tensor view(std::vector<float>& x, int64_t s0, int64_t s1, int64_t s2, int64_t s3) {
    return {.data = reinterpret_cast<char*>(x.data()), .stride = {s0, s1, s2, s3}, .type = Type::f32};
  }
  static Tensor rows(std::vector<float>& x) { return view(x, kRows * kHeads * kDim, kHeads * kDim, kDim, 1); }
  static Tensor numbers_of_rows(std::vector<float>& x) { return view(x, kHeads * kRows, kRows, 1, 0); }
  static Tensor a_head(std::vector<float>& x) { return view(x, 1, 0, 0, 0); }

  double want(int64_t h) const {
    double sum = 0;
    for (int64_t b = 0; b < kBatch; ++b)
      for (int64_t i = 0; i < kRows; ++i) {
        const double row_lse = lse[(b * kHeads + h) * kRows + i];
        if (row_lse == -INFINITY) continue;
        double delta = 0;
        for (int64_t d = 0; d < kDim; ++d) {
          const int64_t at = ((b * kRows + i) * kHeads + h) * kDim + d;
          delta += double{out[at]} * dout[at];
        }
        const double gradient = problem.dlse ? dlse[(b * kHeads + h) * kRows + i] : 0;
        sum += std::exp(sink[h] - row_lse) * (gradient - delta);
      }
    return sum;
  }
};

void one_after_another(void*, int64_t count, Task task, void* context) {
  for (int64_t i = 0; i < count; ++i) task(context, i);
}

TEST(SinkGradient, SumsOverRowsAndSequences) {
  for (bool with_dlse : {true, false})
    for (int workers : {1, 2, 8}) {
      Case c;
      if (!with_dlse) c.problem.dlse = {};
      sink_gradient(c.problem, workers, {nullptr, one_after_another});
      for (int64_t h = 0; h < kHeads; ++h) EXPECT_FLOAT_EQ(c.dsink[h], static_cast<float>(c.want(h)));
      EXPECT_EQ(c.dsink[1], 0);  // a sink of -inf is no sink
    }
}

TEST(SinkGradient, DoesNothingWithoutDsink) {
  Case c;
  c.problem.dsink = {};
  sink_gradient(c.problem, 1, {nullptr, one_after_another});
  EXPECT_TRUE(std::isnan(c.dsink[0]));
}

}  // namespace
}  // namespace tilewise::cpu
