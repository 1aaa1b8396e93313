#include "binding/eager.h"

#include "binding/calls.h"
#include "binding/foreign.h"
#include "binding/look.h"
#include "binding/options.h"

namespace tilewise::python {
namespace {

// What the fields of tilewise._torch_calls.Torch are.
enum Part : Py_ssize_t {
  kTensor,
  kParameter,
  kWatchers,  // a tuple of functions: their answers are all false where nothing looks on
  kIsGradEnabled,
  kThreads,     // ()
  kEmptyLike,   // (q)
  kEmptyAlong,  // (q, width)
  kEmptyLse,    // (q, heads_first)
  kWorkspace,   // (q, bytes)
  kParts
};

class Torch {
 public:
  explicit Torch(const nb::tuple& parts) : parts_(parts.ptr()) {
    if (PyTuple_GET_SIZE(parts_) != kParts) raise(PyExc_TypeError, "torch has %d parts", static_cast<int>(kParts));
  }
  nb::handle operator[](Part part) const { return PyTuple_GET_ITEM(parts_, part); }

  bool is_watched() const {
    PyObject* const watchers = (*this)[kWatchers].ptr();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(watchers); ++i) {
      if (is_true(PyTuple_GET_ITEM(watchers, i))) return true;
    }
    return false;
  }
  bool is_grad_enabled() const { return is_true((*this)[kIsGradEnabled]); }

 private:
  static bool is_true(nb::handle question) {
    const nb::object answer = nb::steal(PyObject_CallNoArgs(question.ptr()));
    if (!answer.is_valid()) throw nb::python_error();
    return answer.is(Py_True) || (!answer.is(Py_False) && !answer.is_none() && PyObject_IsTrue(answer.ptr()));
  }

  PyObject* parts_;
};

// A value of an option that is surely no array.
bool is_plain_value(nb::handle value) {
  return value.is_none() || PyBool_Check(value.ptr()) || PyLong_CheckExact(value.ptr()) ||
         PyFloat_CheckExact(value.ptr()) || PyTuple_CheckExact(value.ptr());
}

struct Lent {
  dlpack::Tensor q, k, v;
};

// What look() says of q, k, v and the arrays among the options; 0 also where dropout is asked for.
int look_at_all(nb::handle q, nb::handle k, nb::handle v, const nb::dict& options, const Torch& torch, Lent& lent) {
  static PyObject* const dropout = PyUnicode_InternFromString("dropout_p");
  int seen = kPlain;
  const auto look_at = [&](nb::handle x, dlpack::Tensor& tensor) {
    const int here = look(x, torch[kTensor], torch[kParameter], tensor);
    seen = here ? seen | here : 0;
    return seen != 0;
  };
  if (!look_at(q, lent.q) || !look_at(k, lent.k) || !look_at(v, lent.v)) return 0;
  dlpack::Tensor other;
  PyObject *name = nullptr, *option = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(options.ptr(), &at, &name, &option);) {
    if (option != Py_None && PyUnicode_Check(name) && PyUnicode_Compare(name, dropout) == 0) return 0;
    if (!is_plain_value(option) && !look_at(option, other)) return 0;
  }
  return seen;
}

bool is_row_major(const Array& array) {
  Array row_major = array;
  set_row_major(row_major);
  for (int axis = 0; axis < array.rank; ++axis) {
    if (array.shape[axis] != 1 && array.stride[axis] != row_major.stride[axis]) return false;
  }
  return true;
}

}  // namespace

nb::object eager(nb::handle q, nb::handle k, nb::handle v, nb::handle with_lse, bool heads_first,
                 const nb::dict& options, uintptr_t openmp, const nb::tuple& torch) {
  const Torch ask(torch);
  Lent lent;
  if (ask.is_watched() || !PyBool_Check(with_lse.ptr())) return nb::none();
  const int seen = look_at_all(q, k, v, options, ask, lent);
  if (!(seen & kPlain) || (seen & kStrides) || lent.q.rank < 3 || lent.v.rank < 3) return nb::none();
  if ((seen & kGrad) && ask.is_grad_enabled()) return nb::none();

  Arrays arrays(heads_first, nb::none());
  const Inputs inputs = {arrays.open(q, lent.q, "q"), arrays.open(k, lent.k, "k"), arrays.open(v, lent.v, "v")};
  Call call = read_call(arrays, inputs, options);
  const int64_t width = lent.v.shape[lent.v.rank - 1];
  const bool is_like_q = is_row_major(inputs.q) && lent.q.shape[lent.q.rank - 1] == width;
  const nb::object out = is_like_q ? ask[kEmptyLike](q) : ask[kEmptyAlong](q, width);
  const nb::object lse = with_lse.is(Py_True) ? ask[kEmptyLse](q, heads_first) : nb::none();
  const int32_t dtype = call.problem.q.dtype;
  if (arrays.on_gpu()) return run_forward(arrays, call, q, out, lse, dtype, 0, 0, ask[kWorkspace]);
  const int threads = number_of<int32_t>(nb::object(ask[kThreads]()), "threads");
  return run_forward(arrays, call, q, out, lse, dtype, openmp, threads, nb::none());
}

}  // namespace tilewise::python
