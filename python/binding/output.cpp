#include "binding/output.h"

#include "binding/foreign.h"
#include "binding/gpu_arrays.h"
#include "binding/numpy.h"

namespace tilewise::python {
namespace {

Array array_of(const Wanted& wanted, const Place& place, const Arrays& arrays) {
  const tw_tensor tensor = arrays.swaps(place, wanted.rank) ? tw_tensor_swap(wanted.tensor, 1, 2) : wanted.tensor;
  Array array;
  array.dtype = tensor.dtype;
  array.rank = wanted.rank;
  for (int axis = 0; axis < wanted.rank; ++axis) array.shape[axis] = tensor.shape[place.axes - wanted.rank + axis];
  return array;
}

}  // namespace

Output::Output(Arrays& arrays, nb::handle given, const Place& place, const Wanted& wanted, nb::handle like) {
  if (!given.is_none()) {
    object_ = nb::borrow(given);
    tensor_ = arrays.read(given, place);
    return;
  }
  Array array = array_of(wanted, place, arrays);
  if (numpy::is_array(like)) {
    object_ = numpy::make(array);
    tensor_ = arrays.read(object_, place);
    return;
  }
  array.device = arrays.device();
  if (arrays.on_gpu()) {
    object_ = gpu_arrays::make(array, like, arrays.stream(), place.name);
    tensor_ = arrays.read(object_, place);
    return;
  }
  // Without memory the library answers that it does not serve another device.
  if (array.device.type == dlpack::kCpu) object_ = foreign::make(array);
  tensor_ = arrays.fit(array, place);
  like_ = like;
}

nb::object Output::converted() const { return foreign::converted(object_, like_); }

}  // namespace tilewise::python
