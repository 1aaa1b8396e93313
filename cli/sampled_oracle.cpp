#include "cli/sampled_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace tilewise::cli {

double sampled_error(const Workload& workload, const Call& call, int64_t rows) {
  const Shape& s = workload.shape;
  const int64_t count = std::min(rows, s.seqlen_q), width = s.heads * s.head_dim, out_width = s.heads * s.head_dim_v;
  std::vector<int32_t> positions;
  std::vector<float> queries;
  for (int64_t i = 1; i <= count; ++i) {
    const int64_t row = i * s.seqlen_q / count - 1;
    positions.push_back(static_cast<int32_t>(row));
    const float* const q = workload.q.as<float>() + row * width;
    queries.insert(queries.end(), q, q + width);
  }
  std::vector<double> right(static_cast<size_t>(count * out_width));

  Shape sampled = s;
  sampled.device = {};
  sampled.seqlen_q = count;
  Described d = describe(sampled, workload.scores);
  tw_attention& a = d.attention;
  a.q.data = queries.data(), a.k.data = workload.k.data(), a.v.data = workload.v.data(), a.out.data = right.data();
  a.lse = {};
  a.q_positions = tw_tensor_of(positions.data(), TW_I32, 1, count, 1, 1);
  Problem problem;
  check(make_problem(a, nullptr, true, problem));
  problem.out.type = Type::f64;  // which only the reference kernel writes
  PlanOptions options;
  options.force = "reference";
  Prepared(problem, options).run();

  const auto* const out = reinterpret_cast<const float*>(call.outputs()[0].data);
  double difference = 0, size = 0;
  for (size_t i = 0; i < right.size(); ++i) {
    const auto row = static_cast<size_t>(positions[i / static_cast<size_t>(out_width)]);
    const double got =
        static_cast<double>(out[row * static_cast<size_t>(out_width) + i % static_cast<size_t>(out_width)]);
    const double gap = std::fabs(got - right[i]);
    if (!(gap <= difference)) difference = gap;  // also a NaN, which stays
    size = std::max(size, std::fabs(right[i]));
  }
  return difference == 0 ? 0 : difference / size;
}

}  // namespace tilewise::cli
