// Arrays on GPUs: what tilewise/_gpu_arrays.py knows of their libraries.
#pragma once

#include "binding/array.h"

namespace tilewise::python::gpu_arrays {

// The handle of the stream that the library of the array works on at present.
uintptr_t stream_of(nb::handle array, int32_t gpu);

// Whether the object has __cuda_array_interface__ and no __dlpack__.
bool has_only_interface(nb::handle object);
// What __cuda_array_interface__ says: (view, stream or None).
nb::object view(nb::handle object, const char* name);

// The array's __dlpack__, which is called with its GPU as the current one.
nb::object producer(nb::handle array, int32_t gpu);

// New memory of the library of `like`, for an array of this shape, type and GPU, in the order of the stream.
nb::object make(const Array& array, nb::handle like, void* stream, const char* name);

}  // namespace tilewise::python::gpu_arrays
