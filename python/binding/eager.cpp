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

// What look() says of q, k, v and the arrays among the options; 0 also where dropout is asked for.
int look_at_all(nb::handle q, nb::handle k, nb::handle v, const nb::dict& options, const Torch& torch, View& query,
                View& value) {
  static PyObject* const dropout = PyUnicode_InternFromString("dropout_p");
  int seen = kPlain;
  const auto look_at = [&](nb::handle x, View& view) {
    const int here = look(x, torch[kTensor], torch[kParameter], view);
    seen = here ? seen | here : 0;
    return seen != 0;
  };
  View other;
  if (!look_at(q, query) || !look_at(k, other) || !look_at(v, value)) return 0;
  PyObject *name = nullptr, *option = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(options.ptr(), &at, &name, &option);) {
    if (option != Py_None && PyUnicode_Check(name) && PyUnicode_Compare(name, dropout) == 0) return 0;
    if (!is_plain_value(option) && !look_at(option, other)) return 0;
  }
  return seen;
}

}  // namespace

nb::object eager(nb::handle q, nb::handle k, nb::handle v, nb::handle with_lse, bool heads_first,
                 const nb::dict& options, uintptr_t openmp, const nb::tuple& torch) {
  const Torch ask(torch);
  View query, value;
  if (ask.is_watched() || !PyBool_Check(with_lse.ptr())) return nb::none();
  const int seen = look_at_all(q, k, v, options, ask, query, value);
  if (!(seen & kPlain) || (seen & kStrides) || query.rank < 3 || value.rank < 3) return nb::none();
  if ((seen & kGrad) && ask.is_grad_enabled()) return nb::none();

  const bool is_like_q = query.is_row_major && query.width == value.width;
  const nb::object out = is_like_q ? ask[kEmptyLike](q) : ask[kEmptyAlong](q, value.width);
  const nb::object lse = with_lse.is(Py_True) ? ask[kEmptyLse](q, heads_first) : nb::none();
  if (query.on_gpu)
    return forward(q, k, v, out, lse, nb::none(), heads_first, options, 0, 0, nb::none(), ask[kWorkspace]);
  const int threads = number_of<int32_t>(nb::object(ask[kThreads]()), "threads");
  return forward(q, k, v, out, lse, nb::none(), heads_first, options, openmp, threads, nb::none(), nb::none());
}

}  // namespace tilewise::python
