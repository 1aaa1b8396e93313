#include "binding/gpu_arrays.h"

#include <bit>

#include "binding/options.h"

namespace tilewise::python::gpu_arrays {
namespace {

nb::module_ module() { return nb::module_::import_("tilewise._gpu_arrays"); }

}  // namespace

uintptr_t stream_of(nb::handle array, int32_t gpu) {
  return number_of<uint64_t>(nb::object(module().attr("stream_of")(array, gpu)), "stream");
}

bool has_only_interface(nb::handle object) {
  return !nb::hasattr(object, "__dlpack__") && nb::hasattr(object, "__cuda_array_interface__");
}

nb::object view(nb::handle object, const char* name) { return module().attr("view")(object, name); }

nb::object producer(nb::handle array, int32_t gpu) { return module().attr("producer")(array, gpu); }

nb::object make(const Array& array, nb::handle like, void* stream, const char* name) {
  nb::list shape;
  for (int axis = 0; axis < array.rank; ++axis) shape.append(array.shape[axis]);
  return module().attr("empty")(like, nb::tuple(shape), type_of(array.dtype).name, array.device.index,
                                std::bit_cast<uintptr_t>(stream), name);
}

}  // namespace tilewise::python::gpu_arrays
