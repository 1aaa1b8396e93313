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
