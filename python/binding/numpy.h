// NumPy's arrays, read and made without its headers. NumPy is not imported: there are none of its arrays before it is.
#pragma once

#include "binding/array.h"

namespace tilewise::python::numpy {

bool is_array(nb::handle object);
bool is_bool(nb::handle object);
Array read(nb::handle object, const char* name);

// A new array of this shape and type. For bfloat16, ml_dtypes is imported if no array of that type has come before.
nb::object make(const Array& array);

}  // namespace tilewise::python::numpy
