// Arrays of other libraries than NumPy, by DLPack.
#pragma once

#include "binding/array.h"

namespace tilewise::python::foreign {

// DLPack's C exchange API of a type, or null if it has none.
const dlpack::ExchangeApi* exchange_api(PyTypeObject* type);

// The array, if its type lends arrays by the C exchange API (torch 2.10 and newer: 50 ns) and, on a GPU, its library
// works on the stream of the call; false otherwise. Fills in the stream where none is known.
bool lend(nb::handle object, const char* name, Stream& stream, Array& array);
// The same of what the API has lent already.
bool lend(nb::handle object, const dlpack::Tensor& lent, const char* name, Stream& stream, Array& array);

// What the object's __dlpack__ gives, on a GPU in order with the stream, which is filled in where none is known.
// TypeError if it has none, BufferError if the library refuses.
nb::object capsule_of(nb::handle object, const char* name, Stream& stream);
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
