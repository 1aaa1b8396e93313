#include "binding/numpy.h"

#include <algorithm>

namespace tilewise::python::numpy {
namespace {

// The head of PyArrayObject. Every module compiled against NumPy 1 or 2 has inlined it, so it cannot change. To read it
// takes 5 ns an array; the buffer protocol takes 150 and knows no bfloat16.
struct ArrayHead {
  PyObject head;
  char* data;
  int rank;
  Py_ssize_t* shape;    // (rank)
  Py_ssize_t* strides;  // (rank) in bytes
  PyObject* base;
  PyObject* dtype;
  int flags;
};
constexpr int kWriteable = 0x0400;

struct KnownType {
  PyObject* dtype;  // NumPy has one such object a type
  int32_t code;
};

// What is needed of NumPy, once the program has imported it. Kept until the process ends.
struct Module {
  PyTypeObject* array = nullptr;
  PyTypeObject* boolean = nullptr;
  PyObject* empty = nullptr;
  std::array<KnownType, 6> types{};  // the last is bfloat16, which comes from another package
};

Module& module() {
  static Module loaded;
  if (loaded.array) return loaded;
  PyObject* numpy = PyDict_GetItemString(PyImport_GetModuleDict(), "numpy");
  if (!numpy || !PyObject_HasAttrString(numpy, "ndarray") || !PyObject_HasAttrString(numpy, "empty")) return loaded;
  const auto keep = [](nb::object object) { return object.release().ptr(); };
  const nb::object dtype = nb::getattr(numpy, "dtype");
  auto type = loaded.types.begin();
  for (const char* name : {"float32", "float16", "bool", "int32", "int64"}) {
    *type++ = {keep(dtype(name)), type_named(name)->code};
  }
  loaded.boolean = reinterpret_cast<PyTypeObject*>(keep(nb::getattr(numpy, "bool_")));
  loaded.empty = keep(nb::getattr(numpy, "empty"));
  loaded.array = reinterpret_cast<PyTypeObject*>(keep(nb::getattr(numpy, "ndarray")));
  return loaded;
}

// A dtype that is none of the objects kept: bfloat16 at first, a copy, or one that the library does not know.
int32_t look_up(PyObject* dtype, const char* name) {
  if (nb::object(nb::getattr(dtype, "isnative")).ptr() != Py_True) {
    raise(PyExc_TypeError, "%s has type %S, in another byte order than this machine's; .astype() converts it", name,
          dtype);
  }
  const nb::object type_object(nb::getattr(dtype, "name"));
  const char* type_name = PyUnicode_AsUTF8(type_object.ptr());
  if (!type_name) throw nb::python_error();
  const ElementType* type = type_named(type_name);
  if (!type) raise_unknown_type(name, type_name);
  if (type->code == TW_BF16) {
    KnownType& bfloat16 = module().types.back();
    Py_XDECREF(bfloat16.dtype);
    bfloat16 = {Py_NewRef(dtype), TW_BF16};
  }
  return type->code;
}

int32_t code_of(PyObject* dtype, const char* name) {
  for (const KnownType& known : module().types) {
    if (known.dtype == dtype) return known.code;
  }
  return look_up(dtype, name);
}

// What numpy.empty takes for a type.
nb::object dtype_of(int32_t code) {
  for (const KnownType& known : module().types) {
    if (known.dtype && known.code == code) return nb::borrow(known.dtype);
  }
  return nb::module_::import_("ml_dtypes").attr(type_of(code).name);
}

}  // namespace

bool is_bool(nb::handle object) {
  PyTypeObject* boolean = module().boolean;
  return boolean && Py_IS_TYPE(object.ptr(), boolean);
}

bool is_array(nb::handle object) {
  PyTypeObject* array = module().array;
  return array && PyObject_TypeCheck(object.ptr(), array);
}

Array read(nb::handle object, const char* name) {
  const auto& head = *reinterpret_cast<const ArrayHead*>(object.ptr());
  if (Py_TYPE(object.ptr()) != module().array && PyObject_HasAttrString(object.ptr(), "_mask")) {
    raise(PyExc_TypeError, "%s is a masked array; give its data, and what is live as mask=", name);
  }
  Array array;
  array.dtype = code_of(head.dtype, name);
  array.data = head.data;
  array.rank = head.rank;
  array.writable = (head.flags & kWriteable) != 0;
  const int bytes = type_of(array.dtype).bytes;
  for (int axis = 0; axis < std::min(head.rank, kMostAxes); ++axis) {
    if (head.strides[axis] % bytes != 0) {
      raise(PyExc_ValueError, "%s has a stride of %zd bytes on axis %d, no multiple of the %d of an element", name,
            head.strides[axis], axis, bytes);
    }
    array.shape[axis] = head.shape[axis];
    array.stride[axis] = head.strides[axis] / bytes;
  }
  return array;
}

nb::object make(const Array& array) {
  const Module& numpy = module();
  const nb::object type = dtype_of(array.dtype);
  const nb::object shape = nb::steal(PyTuple_New(array.rank));
  if (!shape.is_valid()) throw nb::python_error();
  for (int axis = 0; axis < array.rank; ++axis) {
    PyObject* extent = PyLong_FromLongLong(array.shape[axis]);
    if (!extent) throw nb::python_error();
    PyTuple_SET_ITEM(shape.ptr(), axis, extent);
  }
  PyObject* arguments[] = {shape.ptr(), type.ptr()};
  PyObject* made = PyObject_Vectorcall(numpy.empty, arguments, 2, nullptr);
  if (!made) throw nb::python_error();
  return nb::steal(made);
}

}  // namespace tilewise::python::numpy
