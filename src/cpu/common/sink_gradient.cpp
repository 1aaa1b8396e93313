#include "cpu/common/sink_gradient.h"

#include <cmath>

#include "cpu/common/each_unit.h"
#include "cpu/common/element.h"
#include "cpu/simd/portable.h"

namespace tilewise::cpu {
namespace {

using Simd = portable::Simd;

template <class Element>
void read_lanes(const Element* from, int64_t count, float (&to)[Simd::kLanes]) {
  Simd::store(to, count < Simd::kLanes ? Simd::load_first(from, count) : Simd::load(from));
}

template <class A, class B>
double dot(const A* a, const B* b, int64_t count) {
  double sum = 0;
  float x[Simd::kLanes], y[Simd::kLanes];
  for (int64_t i = 0; i < count; i += Simd::kLanes) {
    read_lanes(a + i, count - i, x);
    read_lanes(b + i, count - i, y);
    for (int lane = 0; lane < Simd::kLanes; ++lane) sum += double{x[lane]} * y[lane];
  }
  return sum;
}

double row_delta(const Problem& problem, const Sequence& s, int64_t h, int64_t i) {
  double delta = 0;
  with_element(problem.dout.type, [&](auto dout) {
    with_element(problem.out.type, [&](auto out) {
      delta = dot(row_of<decltype(dout)>(problem.dout, s, i, h), row_of<decltype(out)>(problem.out, s, i, h),
                  problem.value_dim);
    });
  });
  return delta;
}

double head_gradient(const Problem& problem, int64_t h) {
  const double sink = sink_of(problem, h);
  double sum = 0;
  for (int64_t b = 0; b < problem.batch; ++b) {
    const Sequence s = sequence_of(problem, b);
    for (int64_t i = 0; i < s.rows; ++i) {
      const double lse = lse_of(problem.lse, s, i, h);
      if (lse == -INFINITY) continue;
      const double dlse = problem.dlse ? lse_of(problem.dlse, s, i, h) : 0;
      sum += std::exp(sink - lse) * (dlse - row_delta(problem, s, h, i));
    }
  }
  return sum;
}

}  // namespace

void sink_gradient(const Problem& problem, int workers, const Parallel& parallel) {
  if (!problem.dsink) return;
  const Tensor& dsink = problem.dsink;
  each_unit<Simd>(parallel, lesser(workers, problem.heads), problem.heads, [&](int64_t, int64_t h) {
    *element_at<float>(dsink, dsink.offset(h, 0, 0)) = static_cast<float>(head_gradient(problem, h));
  });
}

}  // namespace tilewise::cpu
