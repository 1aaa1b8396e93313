#include "binding/errors.h"

#include <cstdarg>

namespace tilewise::python {

void raise(PyObject* type, const char* format, ...) {
  va_list values;
  va_start(values, format);
  PyErr_FormatV(type, format, values);
  va_end(values);
  throw nb::python_error();
}

nb::object shown(nb::handle value) {
  constexpr Py_ssize_t kMost = 80;  // characters
  const nb::object text = nb::steal(PyObject_Repr(value.ptr()));
  if (!text.is_valid()) throw nb::python_error();
  const nb::object line = nb::str(" ").attr("join")(text.attr("split")());
  if (PyUnicode_GetLength(line.ptr()) <= kMost) return line;
  const nb::object start = nb::steal(PyUnicode_Substring(line.ptr(), 0, kMost));
  return start + nb::str("..");
}

void check(tw_status status, const char* message) {
  if (status == TW_OK) return;
  const auto exception = [&] {
    switch (status) {
      case TW_INVALID_ARGUMENT:
        return PyExc_ValueError;
      case TW_UNSUPPORTED:
        return PyExc_NotImplementedError;
      case TW_OUT_OF_MEMORY:
        return PyExc_MemoryError;
      default:
        return PyExc_RuntimeError;
    }
  };
  raise(exception(), "%s", message);
}

}  // namespace tilewise::python
