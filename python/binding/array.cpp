#include "binding/array.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "binding/foreign.h"
#include "binding/gpu_arrays.h"
#include "binding/numpy.h"
#include "binding/options.h"

namespace tilewise::python {
namespace {

// DLPack's (type, index).
dlpack::Device read_device(nb::handle device, const char* name) {
  if (!PyTuple_Check(device.ptr()) || nb::len(device) != 2) {
    raise(PyExc_TypeError, "%s: the device of a view is a tuple (type, index) of DLPack", name);
  }
  return {number_of<int32_t>(nb::object(device[0]), name), number_of<int32_t>(nb::object(device[1]), name)};
}

// A view: (address, name of the type, shape, strides in elements or None for row-major[, device]). For callers who know
// their memory; address 0 describes an array without memory, which explain() takes.
Array read_view(nb::handle view, const char* name) {
  const size_t parts = nb::len(view);
  if (parts != 4 && parts != 5) {
    raise(PyExc_TypeError, "%s: a view is a tuple (address, dtype, shape, strides[, device])", name);
  }
  const nb::object type_object(view[1]), shape(view[2]), strides(view[3]);
  if (!PyUnicode_Check(type_object.ptr())) {
    raise(PyExc_TypeError, "%s: the type of a view is %U; it takes a name", name, shown(type_object).ptr());
  }
  const char* type_name = PyUnicode_AsUTF8(type_object.ptr());
  if (!type_name) throw nb::python_error();
  const ElementType* type = type_named(type_name);
  if (!type) raise_unknown_type(name, type_name);

  Array array;
  array.dtype = type->code;
  if (parts == 5) array.device = read_device(nb::object(view[4]), name);
  array.data = PyLong_AsVoidPtr(nb::object(view[0]).ptr());
  if (!array.data && PyErr_Occurred()) throw nb::python_error();
  array.rank = static_cast<int>(nb::len(shape));
  const int known = std::min(array.rank, kMostAxes);
  const std::string of_shape = std::string(name) + ".shape", of_strides = std::string(name) + ".strides";
  for (int axis = 0; axis < known; ++axis) {
    array.shape[axis] = number_of<int64_t>(nb::object(shape[axis]), of_shape.c_str());
  }
  set_row_major(array);
  if (strides.is_none()) return array;
  if (static_cast<int>(nb::len(strides)) != array.rank) {
    raise(PyExc_ValueError, "%s: a view of %d axes has %zd strides", name, array.rank, nb::len(strides));
  }
  for (int axis = 0; axis < known; ++axis) {
    array.stride[axis] = number_of<int64_t>(nb::object(strides[axis]), of_strides.c_str());
  }
  return array;
}

void check_axes(const Array& array, const Place& place) {
  if (array.rank >= place.least_axes && array.rank <= place.axes) return;
  if (place.axes == place.least_axes) {
    raise(PyExc_ValueError, "%s has %d axes; it takes %d", place.name, array.rank, place.axes);
  }
  raise(PyExc_ValueError, "%s has %d axes; it takes %d to %d", place.name, array.rank, place.least_axes, place.axes);
}

}  // namespace

void set_row_major(Array& array) {
  uint64_t stride = 1;  // that of an array too large to exist may wrap
  for (int axis = std::min(array.rank, kMostAxes) - 1; axis >= 0; --axis) {
    array.stride[axis] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(array.shape[axis]);
  }
}

const ElementType& type_of(int32_t code) {
  return *std::find_if(kTypes.begin(), kTypes.end(), [&](const ElementType& type) { return type.code == code; });
}

const ElementType* type_named(const char* name) {
  for (const ElementType& type : kTypes) {
    if (std::strcmp(type.name, name) == 0) return &type;
  }
  return nullptr;
}

void raise_unknown_type(const char* array_name, const char* type_name) {
  raise(PyExc_TypeError,
        "%s has type %s; queries, keys, values and bias are float32, float16 or bfloat16, lengths int32, masks bool",
        array_name, type_name);
}

Arrays::Arrays(bool heads_first, nb::handle stream) : heads_first_(heads_first) {
  held_.reserve(kUsual);
  if (!stream.is_none()) stream_ = {.handle = number_of<uint64_t>(stream, "stream"), .is_given = true};
}

Arrays::~Arrays() {
  for (dlpack::Managed* managed : managed_) {
    if (managed->deleter) managed->deleter(managed);
  }
  for (dlpack::VersionedManaged* managed : versioned_) {
    if (managed->deleter) managed->deleter(managed);
  }
}

Array Arrays::open(nb::handle object, const char* name) {
  held_.push_back(nb::borrow(object));
  if (numpy::is_array(object)) return numpy::read(object, name);
  if (PyTuple_Check(object.ptr())) return read_view(object, name);
  Array array;
  if (foreign::lend(object, name, stream_, array)) return array;
  return gpu_arrays::has_only_interface(object) ? read_interface(object, name) : import(object, name);
}

Array Arrays::open(nb::handle object, const dlpack::Tensor& lent, const char* name) {
  Array array;
  if (!foreign::lend(object, lent, name, stream_, array)) return open(object, name);
  held_.push_back(nb::borrow(object));
  return array;
}

void* Arrays::stream() const { return std::bit_cast<void*>(stream_.handle.value_or(0)); }

tw_tensor Arrays::fit(const Array& array, const Place& place) {
  check_axes(array, place);
  if (place.is_written && !array.writable) {
    raise(PyExc_ValueError, "%s is read-only, and the result is written to it", place.name);
  }
  check_device(array, place.name);
  tw_tensor tensor = tw_tensor_of(array.data, array.dtype, 1, 1, 1, 1);
  const int missing = place.axes - array.rank;
  for (int axis = 0; axis < array.rank; ++axis) {
    tensor.shape[missing + axis] = array.shape[axis];
    tensor.stride[missing + axis] = array.stride[axis];
  }
  return swaps(place, array.rank) ? tw_tensor_swap(tensor, 1, 2) : tensor;
}

// By __dlpack__, which gives a capsule with memory to be handed back.
Array Arrays::import(nb::handle object, const char* name) {
  const nb::object capsule = foreign::capsule_of(object, name, stream_);
  // What is taken must find room at once, or its memory would never go back.
  versioned_.reserve(versioned_.size() + 1), managed_.reserve(managed_.size() + 1);
  if (auto* managed = foreign::take<dlpack::VersionedManaged>(capsule)) {
    versioned_.push_back(managed);
    if (managed->version.major != 1) {
      raise(PyExc_TypeError, "%s comes by DLPack %d.%d; this is DLPack 1", name,
            static_cast<int>(managed->version.major), static_cast<int>(managed->version.minor));
    }
    Array array = foreign::read(managed->tensor, name);
    array.writable = (managed->flags & dlpack::kReadOnly) == 0;
    return array;
  }
  auto* managed = foreign::take<dlpack::Managed>(capsule);
  if (!managed) raise(PyExc_TypeError, "%s: __dlpack__ gave no DLPack capsule that is unused", name);
  managed_.push_back(managed);
  return foreign::read(managed->tensor, name);
}

// By __cuda_array_interface__, which names a stream but puts nothing in order with another one.
Array Arrays::read_interface(nb::handle object, const char* name) {
  const nb::object told = gpu_arrays::view(object, name), stream(told[1]);
  const uintptr_t handle = stream.is_none() ? 0 : number_of<uint64_t>(stream, "stream");
  if (!stream_.handle) stream_.handle = handle;
  if (!stream.is_none() && !stream_.is_given && handle != stream_.handle) {
    raise(PyExc_ValueError,
          "%s is in use on stream %zu, and the call runs on stream %zu; synchronise, and give stream=", name, handle,
          *stream_.handle);
  }
  return read_view(nb::object(told[0]), name);
}

namespace {

std::string name_of(dlpack::Device device) {
  if (device.type == dlpack::kCpu) return "cpu";
  if (device.type == dlpack::kCuda) return "cuda:" + std::to_string(device.index);
  return "DLPack device (" + std::to_string(device.type) + ", " + std::to_string(device.index) + ")";
}

}  // namespace

void Arrays::check_device(const Array& array, const char* name) {
  if (!first_name_) {
    first_name_ = name, device_ = array.device;
    if (stream_.is_given && !on_gpu()) {
      raise(PyExc_ValueError, "stream is given but %s is on %s, which has no streams", name, name_of(device_).c_str());
    }
  }
  if (array.device == device_) return;
  raise(PyExc_ValueError, "%s is on %s but %s is on %s; all arrays are on one device", name,
        name_of(array.device).c_str(), first_name_, name_of(device_).c_str());
}

}  // namespace tilewise::python
