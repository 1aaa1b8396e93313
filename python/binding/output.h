// Results: arrays of the caller, or new ones of the kind of another array of the call.
#pragma once

#include "binding/array.h"

namespace tilewise::python {

// A new result, in the axes of the C interface: its last `rank` extents and its type count.
struct Wanted {
  tw_tensor tensor;
  int rank;
};

class Output {
 public:
  // Into `given`, or, where that is None, into a new array of the library of `like`.
  Output(Arrays& arrays, nb::handle given, const Place& place, const Wanted& wanted, nb::handle like);

  const tw_tensor& tensor() const { return tensor_; }
  // For the caller, once the tensor is written.
  nb::object result() const { return like_.is_valid() ? converted() : object_; }

 private:
  nb::object converted() const;

  tw_tensor tensor_;
  nb::object object_;
  nb::handle like_;  // where the object is a DLPack producer, to become an array of this one's library
};

}  // namespace tilewise::python
