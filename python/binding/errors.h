// C++ to Python's exceptions.
#pragma once

#include <nanobind/nanobind.h>

#include "tilewise/tilewise.h"

namespace tilewise::python {

namespace nb = nanobind;

// Raises type(message); `format` as PyErr_Format has it.
[[noreturn]] void raise(PyObject* type, const char* format, ...);

// The value as a message shows it: its repr on one line, cut short.
nb::object shown(nb::handle value);

// Goes on after TW_OK, raises otherwise: ValueError, NotImplementedError, MemoryError or RuntimeError with the message.
void check(tw_status status, const char* message = tw_last_error());

}  // namespace tilewise::python
