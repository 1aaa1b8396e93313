#include "binding/foreign.h"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

#include "binding/gpu_arrays.h"
#include "binding/options.h"

namespace tilewise::python::foreign {
namespace {

template <class Managed>
constexpr const char* kCapsuleName = "dltensor";
template <>
constexpr const char* kCapsuleName<dlpack::VersionedManaged> = "dltensor_versioned";

const dlpack::ExchangeApi* find_exchange_api(PyTypeObject* type) {
  constexpr const char* kName = "dlpack_exchange_api";
  const nb::object capsule = nb::getattr(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), kName)) return nullptr;
  const auto* api = static_cast<const dlpack::ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), kName));
  return api->version.major == 1 && api->tensor_from_object ? api : nullptr;
}

// The module of from_dlpack for arrays such as this one: its array namespace, or the package of its type or of one that
// this is derived from.
nb::object library_of(nb::handle array) {
  if (nb::hasattr(array, "__array_namespace__")) return array.attr("__array_namespace__")();
  for (const nb::handle type : nb::object(array.type().attr("__mro__"))) {
    const nb::object module(type.attr("__module__"));
    if (!PyUnicode_Check(module.ptr())) continue;
    const nb::object package(module.attr("partition")(".")[0]);
    PyObject* found = PyDict_GetItem(PyImport_GetModuleDict(), package.ptr());
    if (found && PyObject_HasAttrString(found, "from_dlpack")) return nb::borrow(found);
  }
  return nb::none();
}

// As libraries name the type, "float64"; by its numbers where it has none.
std::string name_of(const dlpack::DataType& type) {
  constexpr std::array<const char*, 7> kNames = {"int", "uint", "float", nullptr, "bfloat", "complex", "bool"};
  const std::string bits = std::to_string(type.bits);
  const bool is_plain = type.code < kNames.size() && kNames[type.code] && type.lanes == 1;
  if (is_plain) return kNames[type.code] + bits;
  return "of DLPack code " + std::to_string(type.code) + " with " + bits + " bits";
}

// The library has not lent an array. RuntimeError is what torch raises for tensors without plain memory (sparse,
// quantized, meta), with a trace of the stack and no name; anything else goes on as it is.
[[noreturn]] void raise_not_lent(nb::handle object, const char* name) {
  const nb::python_error error;
  if (!error.matches(PyExc_RuntimeError)) throw error;
  const std::string message = nb::str(error.value()).c_str();
  raise(PyExc_TypeError, "%s is a %s without plain memory: %s", name, Py_TYPE(object.ptr())->tp_name,
        message.substr(0, message.find('\n')).c_str());
}

uintptr_t work_stream(const dlpack::ExchangeApi& api, nb::handle object, int32_t gpu) {
  if (!api.current_work_stream) return gpu_arrays::stream_of(object, gpu);
  void* stream = nullptr;
  if (api.current_work_stream(dlpack::kCuda, gpu, &stream) == 0) return std::bit_cast<uintptr_t>(stream);
  if (PyErr_Occurred()) throw nb::python_error();
  return 0;
}

bool is_gpu(int32_t device_type) { return device_type == dlpack::kCuda || device_type == dlpack::kCudaManaged; }

// Pinned memory is the host's, managed memory the GPU's.
dlpack::Device plain(dlpack::Device device) {
  if (device.type == dlpack::kCpu || device.type == dlpack::kCudaHost) return {dlpack::kCpu, 0};
  if (is_gpu(device.type)) return {dlpack::kCuda, device.index};
  return device;
}

// The GPU that the object says it is on, if it is on one.
std::optional<int32_t> gpu_of(nb::handle object) {
  if (!nb::hasattr(object, "__dlpack_device__")) return {};
  const nb::object device = object.attr("__dlpack_device__")();
  if (!is_gpu(number_of<int32_t>(nb::object(device[0]), "__dlpack_device__"))) return {};
  return number_of<int32_t>(nb::object(device[1]), "__dlpack_device__");
}

}  // namespace

// The few types that have one are remembered.
const dlpack::ExchangeApi* exchange_api(PyTypeObject* type) {
  struct Known {
    PyTypeObject* type;
    const dlpack::ExchangeApi* api;
  };
  static std::array<Known, 8> known{};
  for (const Known& entry : known) {
    if (entry.type == type) return entry.api;
  }
  const dlpack::ExchangeApi* api = find_exchange_api(type);
  const auto free = std::find_if(known.begin(), known.end(), [](const Known& entry) { return !entry.type; });
  if (api && free != known.end()) {
    Py_INCREF(type);
    *free = {type, api};
  }
  return api;
}

bool lend(nb::handle object, const char* name, Stream& stream, Array& array) {
  const dlpack::ExchangeApi* api = exchange_api(Py_TYPE(object.ptr()));
  if (!api) return false;
  dlpack::Tensor tensor{};
  if (api->tensor_from_object(object.ptr(), &tensor) != 0) {
    if (PyErr_Occurred()) raise_not_lent(object, name);
    return false;
  }
  return lend(object, tensor, name, stream, array);
}

bool lend(nb::handle object, const dlpack::Tensor& lent, const char* name, Stream& stream, Array& array) {
  array = read(lent, name);
  if (array.device.type != dlpack::kCuda) return true;
  const dlpack::ExchangeApi* api = exchange_api(Py_TYPE(object.ptr()));
  if (stream.equal_api == api && stream.equal_gpu == array.device.index) return true;
  const uintptr_t current = work_stream(*api, object, array.device.index);
  if (!stream.handle) stream.handle = current;
  if (stream.handle != current) return false;
  stream.equal_api = api, stream.equal_gpu = array.device.index;
  return true;
}

nb::object capsule_of(nb::handle object, const char* name, Stream& stream) {
  if (!nb::hasattr(object, "__dlpack__")) {
    raise(PyExc_TypeError, "%s is a %s; it takes an array: NumPy's, or one with __dlpack__", name,
          Py_TYPE(object.ptr())->tp_name);
  }
  nb::object producer = object.attr("__dlpack__");
  nb::dict keywords;
  if (const std::optional<int32_t> gpu = gpu_of(object)) {
    constexpr uintptr_t kLegacyDefault = 1;  // DLPack refuses 0
    if (!stream.handle) stream.handle = gpu_arrays::stream_of(object, *gpu);
    keywords["stream"] = *stream.handle == 0 ? kLegacyDefault : *stream.handle;
    producer = gpu_arrays::producer(object, *gpu);
  }
  keywords["max_version"] = nb::make_tuple(1, 0);
  try {
    return producer(**keywords);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;  // a producer from before DLPack 1
  }
  nb::del(keywords["max_version"]);
  return producer(**keywords);
}

template <class Managed>
Managed* take(nb::handle capsule) {
  constexpr const char* kName = kCapsuleName<Managed>;
  if (!PyCapsule_IsValid(capsule.ptr(), kName)) return nullptr;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule.ptr(), kName));
  const bool is_versioned = std::is_same_v<Managed, dlpack::VersionedManaged>;
  PyCapsule_SetName(capsule.ptr(), is_versioned ? "used_dltensor_versioned" : "used_dltensor");
  return managed;
}
template dlpack::Managed* take(nb::handle capsule);
template dlpack::VersionedManaged* take(nb::handle capsule);

Array read(const dlpack::Tensor& tensor, const char* name) {
  const auto same = [&](const ElementType& type) {
    return std::memcmp(&type.dlpack, &tensor.dtype, sizeof tensor.dtype) == 0;
  };
  const auto type = std::find_if(kTypes.begin(), kTypes.end(), same);
  if (type == kTypes.end()) {
    raise_unknown_type(name, name_of(tensor.dtype).c_str());
  }
  if (tensor.rank < 0 || (tensor.rank > 0 && !tensor.shape)) {
    raise(PyExc_ValueError, "%s has %d axes by DLPack%s", name, tensor.rank, tensor.shape ? "" : ", and no shape");
  }
  Array array;
  array.dtype = type->code;
  array.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  array.rank = tensor.rank;
  array.device = plain(tensor.device);
  const int known = std::min(tensor.rank, kMostAxes);
  std::copy_n(tensor.shape, known, array.shape.begin());
  set_row_major(array);
  if (tensor.strides) std::copy_n(tensor.strides, known, array.stride.begin());
  return array;
}

nb::object make(Array& array) {
  constexpr size_t kAlignment = 64;  // JAX copies what is aligned less
  const ElementType& type = type_of(array.dtype);
  std::array<size_t, kMostAxes> shape{};
  size_t bytes = type.bytes;
  for (int axis = 0; axis < array.rank; ++axis) {
    shape[axis] = static_cast<size_t>(array.shape[axis]);
    if (__builtin_mul_overflow(bytes, shape[axis], &bytes)) throw std::bad_alloc();
  }
  if (bytes > std::numeric_limits<size_t>::max() - kAlignment) throw std::bad_alloc();
  const auto free = [](void* memory) noexcept { std::free(memory); };
  std::unique_ptr<void, decltype(free)> memory(std::aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment),
                                               free);
  if (!memory) throw std::bad_alloc();
  array.data = memory.get();
  set_row_major(array);
  const nb::capsule owner(array.data, free);
  (void)memory.release();
  const nb::dlpack::dtype dtype{type.dlpack.code, type.dlpack.bits, type.dlpack.lanes};
  return nb::cast(nb::ndarray<nb::array_api>(array.data, array.rank, shape.data(), owner, nullptr, dtype));
}

nb::object converted(nb::object producer, nb::handle like) {
  const nb::object home = library_of(like);
  const nb::object from_dlpack = nb::getattr(home, "from_dlpack", nb::none());
  return from_dlpack.is_none() ? producer : from_dlpack(producer);
}

}  // namespace tilewise::python::foreign
