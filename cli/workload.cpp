#include "cli/workload.h"

#include <algorithm>
#include <cmath>

#include "cases/random.h"
#include "cli/failure.h"
#include "cpu/common/element_values.h"

namespace tilewise::cli {
namespace {

Tensor row_of_elements(const Buffer& buffer, Type type) {
  Tensor row;
  row.data = buffer.data(), row.type = type;
  row.shape[3] = buffer.size() / size_of(type), row.stride[3] = 1;
  return row;
}

void fill(const Buffer& buffer, Type type, cases::Random& random) {
  constexpr int64_t kPiece = 4096;
  const Tensor row = row_of_elements(buffer, type);
  float values[kPiece];
  for (int64_t begin = 0; begin < row.shape[3]; begin += kPiece) {
    const int64_t count = std::min(kPiece, row.shape[3] - begin);
    for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(2 * random.uniform() - 1);
    cpu::write_values(row, begin, count, values);
  }
}

// An output that a problem is given: memory for it in `type`, whatever type the C interface was told.
struct Output {
  tw_tensor* given;
  Tensor* tensor;
};

double largest_of(double a, double b) { return a > b || std::isnan(a) ? a : b; }

double error_of(const Tensor& x, const Tensor& oracle) {
  double difference = 0, size = 0;
  std::vector<double> got(static_cast<size_t>(x.shape[3])), right(got.size());
  for (int64_t a = 0; a < x.shape[0]; ++a) {
    for (int64_t b = 0; b < x.shape[1]; ++b) {
      for (int64_t c = 0; c < x.shape[2]; ++c) {
        cpu::read_values(x, x.offset(a, b, c), x.shape[3], got.data());
        cpu::read_values(oracle, oracle.offset(a, b, c), x.shape[3], right.data());
        for (size_t i = 0; i < got.size(); ++i) {
          if (got[i] == right[i]) continue;  // also infinities
          difference = largest_of(std::fabs(got[i] - right[i]), difference);
          size = std::max(size, std::fabs(right[i]));
        }
      }
    }
  }
  return difference == 0 ? 0 : difference / size;
}

}  // namespace

Workload::Workload(const Shape& given_shape, const ScoreOptions& given_scores)
    : shape(given_shape), scores(given_scores) {
  const Described d = describe(shape, scores);
  q = Buffer(bytes_of(d.attention.q), "q");
  k = Buffer(bytes_of(d.attention.k), "k");
  v = Buffer(bytes_of(d.attention.v), "v");
  if (d.backward) dout = Buffer(bytes_of(d.attention.out), "dout");
}

void Workload::fill_randomly(uint64_t seed) {
  cases::Random random(seed);
  for (const Buffer* buffer : {&q, &k, &v, &dout}) fill(*buffer, shape.dtype, random);
}

Call::Call(const Workload& workload, Pass pass, const PlanOptions& options, Type output_type) {
  Shape shape = workload.shape;
  shape.pass = pass;
  Described d = describe(shape, workload.scores);
  tw_attention& a = d.attention;
  a.q.data = workload.q.data(), a.k.data = workload.k.data(), a.v.data = workload.v.data();

  Problem problem;
  std::vector<Output> outputs = {{&a.out, &problem.out}, {&a.lse, &problem.lse}};
  if (pass == Pass::backward) {
    forward_.reset(new Call(workload, Pass::forward, output_type == Type::none ? PlanOptions() : options, output_type));
    forward_->run();
    a.out.data = forward_->outputs()[0].data, a.lse.data = forward_->outputs()[1].data;
    d.grad.dout.data = workload.dout.data();
    outputs = {{&d.grad.dq, &problem.dq}, {&d.grad.dk, &problem.dk}, {&d.grad.dv, &problem.dv}};
  }
  const auto type_of = [&](const tw_tensor& t) {
    return output_type == Type::none ? static_cast<Type>(t.dtype) : output_type;
  };
  for (const Output& output : outputs) {
    const int64_t elements = bytes_of(*output.given) / size_of(static_cast<Type>(output.given->dtype));
    memory_.emplace_back(elements * size_of(type_of(*output.given)), "the outputs");
    output.given->data = memory_.back().data();
  }
  check(make_problem(a, d.grad_or_null(), true, problem));
  for (const Output& output : outputs) {
    output.tensor->type = type_of(*output.given);
    outputs_.push_back(*output.tensor);
  }
  if (forward_) problem.out.type = type_of(a.out), problem.lse.type = type_of(a.lse);
  prepared_ = Prepared(problem, options);
}

Call Call::oracle(const Workload& workload, Pass pass) {
  PlanOptions options;
  options.force = "reference";
  Call call(workload, pass, options, Type::f64);
  call.run();
  return call;
}

double worst_error(const Call& call, const Call& oracle) {
  double worst = 0;
  for (size_t i = 0; i < call.outputs().size(); ++i) {
    worst = largest_of(error_of(call.outputs()[i], oracle.outputs()[i]), worst);
  }
  return worst;
}

}  // namespace tilewise::cli
