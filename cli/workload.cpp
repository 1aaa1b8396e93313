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

// Where a problem reads an input: in the memory of its device.
void* place_of(const Buffer& host, const GpuMemory& gpu, const Shape& shape) {
  return shape.device.is_gpu() ? gpu.data() : host.data();
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
  upload();
}

void Workload::upload() {
  if (!shape.device.is_gpu()) return;
  const auto copy = [&](const Buffer& from, const char* name, GpuMemory& to) {
    if (!to.data()) to = GpuMemory(shape.device.index, from.size(), name);
    to.upload(from);
  };
  copy(q, "q", gpu_q), copy(k, "k", gpu_k), copy(v, "v", gpu_v), copy(dout, "dout", gpu_dout);
}

Call::Call(const Workload& workload, Pass pass, const PlanOptions& options, Type output_type) {
  Shape shape = workload.shape;
  shape.pass = pass;
  if (output_type != Type::none) shape.device = {};  // the oracle's
  Described d = describe(shape, workload.scores);
  tw_attention& a = d.attention;
  a.q.data = place_of(workload.q, workload.gpu_q, shape);
  a.k.data = place_of(workload.k, workload.gpu_k, shape);
  a.v.data = place_of(workload.v, workload.gpu_v, shape);

  Problem problem;
  std::vector<Output> outputs = {{&a.out, &problem.out}, {&a.lse, &problem.lse}};
  if (pass == Pass::backward) {
    forward_.reset(new Call(workload, Pass::forward, output_type == Type::none ? PlanOptions() : options, output_type));
    forward_->run();
    a.out.data = forward_->prepared().problem().out.data, a.lse.data = forward_->prepared().problem().lse.data;
    d.grad.dout.data = place_of(workload.dout, workload.gpu_dout, shape);
    outputs = {{&d.grad.dq, &problem.dq}, {&d.grad.dk, &problem.dk}, {&d.grad.dv, &problem.dv}};
  }
  const auto type_of = [&](const tw_tensor& t) {
    return output_type == Type::none ? static_cast<Type>(t.dtype) : output_type;
  };
  for (const Output& output : outputs) {
    const int64_t elements = bytes_of(*output.given) / size_of(static_cast<Type>(output.given->dtype));
    const int64_t bytes = elements * size_of(type_of(*output.given));
    memory_.emplace_back(bytes, "the outputs");
    if (shape.device.is_gpu()) gpu_memory_.emplace_back(shape.device.index, bytes, "the outputs");
    output.given->data = shape.device.is_gpu() ? gpu_memory_.back().data() : memory_.back().data();
  }
  check(make_problem(a, d.grad_or_null(), true, problem));
  for (const Output& output : outputs) {
    output.tensor->type = type_of(*output.given);
    outputs_.push_back(*output.tensor);
    outputs_.back().data = memory_[outputs_.size() - 1].data();
  }
  if (forward_) problem.out.type = type_of(a.out), problem.lse.type = type_of(a.lse);
  prepared_ = Prepared(problem, options);
}

int64_t Call::gpu_bytes() const {
  auto bytes = static_cast<int64_t>(plan().sizing.workspace_bytes);
  for (const GpuMemory& memory : gpu_memory_) bytes += memory.size();
  return bytes;
}

void Call::fetch() const {
  for (size_t i = 0; i < gpu_memory_.size(); ++i) gpu_memory_[i].download(memory_[i]);
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
