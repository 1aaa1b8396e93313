#include "cli/sampled_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "cpu/common/element_values.h"

namespace tilewise::cli {

double sampled_error(const Workload& workload, const Call& call, int64_t rows) {
  const Shape& s = workload.shape;
  const int64_t count = std::min(rows, s.seqlen_q), out_width = s.heads * s.head_dim_v;
  const int64_t row_bytes = s.heads * s.head_dim * size_of(s.dtype);
  std::vector<int32_t> positions;
  std::vector<char> queries;
  for (int64_t i = 1; i <= count; ++i) {
    const int64_t row = i * s.seqlen_q / count - 1;
    positions.push_back(static_cast<int32_t>(row));
    const char* const q = workload.q.data() + row * row_bytes;
    queries.insert(queries.end(), q, q + row_bytes);
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

  double difference = 0, size = 0;
  std::vector<double> got(static_cast<size_t>(out_width));
  for (size_t i = 0; i < right.size(); ++i) {
    const size_t row = i / got.size(), column = i % got.size();
    if (column == 0) cpu::read_values(call.outputs()[0], positions[row] * out_width, out_width, got.data());
    const double gap = std::fabs(got[column] - right[i]);
    if (!(gap <= difference)) difference = gap;  // also a NaN, which stays
    size = std::max(size, std::fabs(right[i]));
  }
  return difference == 0 ? 0 : difference / size;
}

}  // namespace tilewise::cli
