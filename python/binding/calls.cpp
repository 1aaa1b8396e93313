#include "binding/calls.h"

#include <optional>

#include "binding/output.h"
#include "binding/results.h"
#include "binding/runner.h"

namespace tilewise::python {
namespace {

int32_t dtype_named(nb::handle name, int32_t otherwise) {
  if (name.is_none()) return otherwise;
  const char* text = PyUnicode_AsUTF8(name.ptr());
  if (!text) PyErr_Clear();
  const ElementType* type = text ? type_named(text) : nullptr;
  const bool is_float = type && (type->code == TW_F32 || type->code == TW_F16 || type->code == TW_BF16);
  if (!is_float) raise(PyExc_TypeError, "out_dtype is %S; there are float32, float16 and bfloat16", name.ptr());
  return type->code;
}

bool is_true(nb::handle object) { return object.ptr() == Py_True; }

// A new gradient takes its shape from its argument.
void require_argument(nb::handle gradient, const tw_tensor& argument, const char* name) {
  if (!is_true(gradient) || argument.dtype != TW_NONE) return;
  raise(PyExc_ValueError, "d%s is wanted but %s is absent", name, name);
}

// A gradient: an array given, True for a new one, None for none.
class Gradient {
 public:
  Gradient(Arrays& arrays, nb::handle given, const Place& place, const Wanted& wanted, nb::handle like,
           tw_tensor& field) {
    if (given.is_none()) return;
    output_.emplace(arrays, is_true(given) ? nb::handle(Py_None) : given, written(place), wanted, like);
    field = output_->tensor();
  }
  nb::object result() const { return output_ ? output_->result() : nb::none(); }

 private:
  std::optional<Output> output_;
};

}  // namespace

nb::object forward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle out_dtype,
                   bool heads_first, const nb::dict& options, uintptr_t openmp, int threads, nb::handle stream,
                   nb::handle allocate) {
  Arrays arrays(heads_first, stream);
  Call call = read_call(arrays, q, k, v, options);
  require_dropout_numbers(call, options);
  return run_forward(arrays, call, q, out, lse, dtype_named(out_dtype, dtype_of_results(call.problem)), openmp, threads,
                     allocate);
}

nb::object run_forward(Arrays& arrays, Call& call, nb::handle q, nb::handle out, nb::handle lse, int32_t dtype,
                       uintptr_t openmp, int threads, nb::handle allocate) {
  tw_attention& problem = call.problem;
  if (problem.threads == 0) problem.threads = threads;
  const Output out_written(arrays, out, written(tokens("out")), {out_like(problem, dtype), call.rank_q}, q);
  problem.out = out_written.tensor();
  Runner runner(arrays, openmp, allocate, q);
  if (lse.is_none()) {
    runner.attention(problem, nullptr);
    return out_written.result();
  }
  const nb::handle lse_given = is_true(lse) ? nb::handle(Py_None) : lse;
  const Output lse_written(arrays, lse_given, written(logarithms("lse")), {lse_like(problem), call.rank_q - 1}, q);
  problem.lse = lse_written.tensor();
  runner.attention(problem, nullptr);
  return nb::make_tuple(out_written.result(), lse_written.result());
}

nb::tuple backward(nb::handle dout, nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
                   nb::handle dlse, const nb::tuple& gradients, nb::handle accumulate, bool heads_first,
                   const nb::dict& options, uintptr_t openmp, int threads, nb::handle stream, nb::handle allocate) {
  if (nb::len(gradients) != 5) raise(PyExc_TypeError, "gradients are five: dq, dk, dv, dbias, dsink");
  Arrays arrays(heads_first, stream);
  Call call = read_call(arrays, q, k, v, options);
  require_dropout_numbers(call, options);
  tw_attention& problem = call.problem;
  if (problem.threads == 0) problem.threads = threads;
  require_argument(gradients[3], problem.bias, "bias");
  require_argument(gradients[4], problem.sink, "sink");
  problem.out = arrays.read(out, tokens("out"));
  problem.lse = arrays.read(lse, logarithms("lse"));

  tw_attention_grad grad;
  TW_INIT(grad);
  if (flag_of(accumulate, "accumulate")) grad.flags |= TW_GRAD_ACCUMULATE;
  grad.dout = arrays.read(dout, tokens("dout"));
  if (!dlse.is_none()) grad.dlse = arrays.read(dlse, logarithms("dlse"));

  constexpr Place kBias = {.name = "dbias", .axes = 4}, kSink = {.name = "dsink", .axes = 1};
  const tw_tensor sink = tw_tensor_of(nullptr, TW_F32, problem.q.shape[2], 1, 1, 1);
  const Gradient dq(arrays, gradients[0], tokens("dq"), {problem.q, call.rank_q}, q, grad.dq);
  const Gradient dk(arrays, gradients[1], tokens("dk"), {problem.k, call.rank_k}, k, grad.dk);
  const Gradient dv(arrays, gradients[2], tokens("dv"), {problem.v, call.rank_v}, v, grad.dv);
  const Gradient dbias(arrays, gradients[3], kBias, {problem.bias, call.rank_bias}, q, grad.dbias);
  const Gradient dsink(arrays, gradients[4], kSink, {sink, 1}, q, grad.dsink);
  Runner(arrays, openmp, allocate, q).attention(problem, &grad);
  return nb::make_tuple(dq.result(), dk.result(), dv.result(), dbias.result(), dsink.result());
}

namespace {

// Stacked parts without the leading axis, along which they lie `stride` elements apart.
struct Parts {
  Array first;
  int64_t count, stride;
};

Parts parts_of(Arrays& arrays, nb::handle stacked, const char* name, int axes) {
  Array array = arrays.open(stacked, name);
  if (array.rank < axes || array.rank > axes + 1) {
    raise(PyExc_ValueError, "%s has %d axes; it takes %d or %d: the parts, and the axes of each", name, array.rank,
          axes, axes + 1);
  }
  const Parts parts = {{}, array.shape[0], array.stride[0]};
  std::copy(array.shape.begin() + 1, array.shape.end(), array.shape.begin());
  std::copy(array.stride.begin() + 1, array.stride.end(), array.stride.begin());
  --array.rank;
  return {array, parts.count, parts.stride};
}

}  // namespace

nb::tuple merge(nb::handle out_parts, nb::handle lse_parts, nb::handle out, nb::handle lse, nb::handle out_dtype,
                bool heads_first, nb::handle threads, nb::handle stream) {
  Arrays arrays(heads_first, stream);
  const Parts outs = parts_of(arrays, out_parts, "out_parts", 4), lses = parts_of(arrays, lse_parts, "lse_parts", 3);
  if (outs.count != lses.count) {
    raise(PyExc_ValueError, "out_parts has %lld parts and lse_parts %lld", static_cast<long long>(outs.count),
          static_cast<long long>(lses.count));
  }
  tw_merge merge;
  TW_INIT(merge);
  merge.out_parts = arrays.fit(outs.first, tokens("out_parts"));
  merge.lse_parts = arrays.fit(lses.first, logarithms("lse_parts"));
  merge.parts = outs.count, merge.out_part_stride = outs.stride, merge.lse_part_stride = lses.stride;
  merge.device_type = arrays.device().type, merge.device_index = arrays.device().index;
  if (!threads.is_none()) merge.threads = number_of<int32_t>(threads, "threads");

  tw_tensor wanted = merge.out_parts;
  wanted.dtype = dtype_named(out_dtype, TW_F32);
  const Output out_written(arrays, out, written(tokens("out")), {wanted, outs.first.rank}, out_parts);
  const Output lse_written(arrays, lse, written(logarithms("lse")), {merge.lse_parts, lses.first.rank}, lse_parts);
  merge.out = out_written.tensor(), merge.lse = lse_written.tensor();
  Runner(arrays, 0).merge(merge);
  return nb::make_tuple(out_written.result(), lse_written.result());
}

}  // namespace tilewise::python
