// Arrays of other libraries than NumPy, by DLPack.
#pragma once

#include "binding/array.h"

namespace tilewise::python::foreign {

// The array, if its type lends arrays by the C exchange API (torch 2.10 and newer: 50 ns); false otherwise.
bool lend(nb::handle object, const char* name, Array& array);

// What the object's __dlpack__ gives. TypeError if it has none, BufferError if the library refuses.
nb::object capsule_of(nb::handle object, const char* name);
// The capsule's memory, now the caller's to delete; null if the capsule is of another kind.
template <class Managed>
Managed* take(nb::handle capsule);

Array read(const dlpack::Tensor& tensor, const char* name);

// New memory, not cleared, for an array of this shape and type, as an object with __dlpack__. Fills in data and
// strides.
nb::object make(Array& array);
// The producer's memory as an array of the library that `like` is of; the producer itself if that has no from_dlpack.
nb::object converted(nb::object producer, nb::handle like);

}  // namespace tilewise::python::foreign
