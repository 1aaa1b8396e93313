#include "binding/look.h"

#include "binding/foreign.h"

namespace tilewise::python {
namespace {

PyObject* interned(const char* name) {
  PyObject* string = PyUnicode_InternFromString(name);
  if (!string) throw nb::python_error();
  return string;
}

bool is_true(PyObject* answer) {
  const nb::object held = nb::steal(answer);
  if (!answer) throw nb::python_error();
  return answer == Py_True;
}

bool has_unit_stride(const dlpack::Tensor& tensor) {
  return tensor.rank < 1 || !tensor.strides || tensor.strides[tensor.rank - 1] == 1;
}

bool has_memory(const dlpack::Tensor& tensor) {
  return tensor.device.type == dlpack::kCpu || tensor.device.type == dlpack::kCuda;
}

}  // namespace

int look(nb::handle x, nb::handle tensor_type, nb::handle parameter_type, dlpack::Tensor& tensor) {
  static PyObject *const is_neg = interned("is_neg"), *const requires_grad = interned("requires_grad");
  const nb::handle type = x.type();
  if (!type.is(tensor_type) && !type.is(parameter_type)) return 0;
  const dlpack::ExchangeApi* api = foreign::exchange_api(Py_TYPE(x.ptr()));
  if (!api || api->tensor_from_object(x.ptr(), &tensor) != 0) {
    PyErr_Clear();  // sparse and the like
    return 0;
  }
  if (!has_memory(tensor) || is_true(PyObject_CallMethodNoArgs(x.ptr(), is_neg))) return 0;
  const bool has_grad = is_true(PyObject_GetAttr(x.ptr(), requires_grad));
  return kPlain | (has_grad ? kGrad : 0) | (has_unit_stride(tensor) ? 0 : kStrides);
}

int look(const nb::tuple& tensors, nb::handle tensor_type, nb::handle parameter_type) {
  int seen = kPlain;
  dlpack::Tensor tensor{};
  for (const nb::handle x : tensors) {
    const int here = look(x, tensor_type, parameter_type, tensor);
    if (!here) return 0;
    seen |= here;
  }
  return seen;
}

}  // namespace tilewise::python
