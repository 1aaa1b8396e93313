// The layouts of DLPack 1.x (dmlc/dlpack, dlpack.h) that the reader of arrays needs; they never change.
#pragma once

#include <cstdint>

namespace tilewise::python::dlpack {

struct Version {
  uint32_t major, minor;
};

struct Device {
  int32_t type, index;
  bool operator==(const Device&) const = default;
};
enum : int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3, kCudaManaged = 13 };

struct DataType {
  uint8_t code, bits;
  uint16_t lanes;
};
enum : uint8_t { kInt = 0, kFloat = 2, kBfloat = 4, kBool = 6, kFloat8E4M3 = 10 };

struct Tensor {
  void* data;
  Device device;
  int32_t rank;
  DataType dtype;
  int64_t* shape;    // (rank)
  int64_t* strides;  // (rank) in elements; null = row-major
  uint64_t byte_offset;
};

struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

struct VersionedManaged {
  Version version;
  void* context;
  void (*deleter)(VersionedManaged*);
  uint64_t flags;
  Tensor tensor;
};
inline constexpr uint64_t kReadOnly = 1;

// What a type's __dlpack_c_exchange_api__ points to, since DLPack 1.2: its arrays without a call of Python.
struct ExchangeApi {
  Version version;
  const ExchangeApi* previous;
  void* allocate;
  void* managed_from_object;
  void* object_from_managed;
  int (*tensor_from_object)(void* object, Tensor* out);  // lends: valid while the object is; 0 = success; may be null
  int (*current_work_stream)(int32_t device_type, int32_t device_index, void** stream);  // 0 = success; may be null
};

}  // namespace tilewise::python::dlpack
