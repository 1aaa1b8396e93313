// Arrays that Python gives, of any library, as tensors of the C interface. Nothing is copied.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "binding/dlpack.h"
#include "binding/errors.h"

namespace tilewise::python {

// An element type that arrays and the C interface share.
struct ElementType {
  int32_t code;
  const char* name;
  int bytes;
  dlpack::DataType dlpack;
};
inline constexpr std::array<ElementType, 8> kTypes = {{{TW_F32, "float32", 4, {dlpack::kFloat, 32, 1}},
                                                       {TW_F16, "float16", 2, {dlpack::kFloat, 16, 1}},
                                                       {TW_BF16, "bfloat16", 2, {dlpack::kBfloat, 16, 1}},
                                                       {TW_F8E4M3, "float8_e4m3fn", 1, {dlpack::kFloat8E4M3, 8, 1}},
                                                       {TW_I8, "int8", 1, {dlpack::kInt, 8, 1}},
                                                       {TW_BOOL, "bool", 1, {dlpack::kBool, 8, 1}},
                                                       {TW_I32, "int32", 4, {dlpack::kInt, 32, 1}},
                                                       {TW_I64, "int64", 8, {dlpack::kInt, 64, 1}}}};

const ElementType& type_of(int32_t code);
// Null if there is none of that name.
const ElementType* type_named(const char* name);
[[noreturn]] void raise_unknown_type(const char* array_name, const char* type_name);

inline constexpr int kMostAxes = 5;  // stacked parts to merge have one more than a tensor

// One array, as it is. Of more axes than kMostAxes only `rank` is told.
struct Array {
  void* data = nullptr;
  int32_t dtype = TW_NONE;
  int rank = 0;
  std::array<int64_t, kMostAxes> shape{};   // (rank)
  std::array<int64_t, kMostAxes> stride{};  // (rank) in elements
  dlpack::Device device{dlpack::kCpu, 0};
  bool writable = true;  // false where its library says so; DLPack 0 and lent arrays do not tell
};

// The stream of a GPU that a call runs on: the one that is given; otherwise the one that the library of its first array
// works on at present. Empty until that is known.
struct Stream {
  std::optional<uintptr_t> handle;
  bool is_given = false;
  const dlpack::ExchangeApi* equal_api = nullptr;  // works on that stream at present, on the GPU equal_gpu
  int32_t equal_gpu = 0;
};

// What the array for a field of the C interface must be like.
struct Place {
  const char* name;
  int axes;                // of the field
  int least_axes = 1;      // an array with fewer than `axes` gets axes of extent 1 in front
  bool has_heads = false;  // axes 1 and 2 of a 4-D array are tokens and heads, exchanged where heads come first
  bool is_written = false;
};

// (B,S,H,D), packed (total,H,D).
constexpr Place tokens(const char* name) { return {.name = name, .axes = 4, .least_axes = 3, .has_heads = true}; }
// (B,H,S), packed (H,total).
constexpr Place logarithms(const char* name) { return {.name = name, .axes = 3, .least_axes = 2}; }
constexpr Place written(Place place) {
  place.is_written = true;
  return place;
}

// The arrays of one call: reads them, holds them to one device, keeps them and what they lend until the call ends.
class Arrays {
 public:
  // stream: a cudaStream_t as an int, or None.
  Arrays(bool heads_first, nb::handle stream);
  ~Arrays();
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;

  // Any array: NumPy's, one with __dlpack__ or __cuda_array_interface__, or a view as a tuple (address, dtype name,
  // shape, strides or None[, device]). What lies on a GPU is ready for work on the stream.
  Array open(nb::handle object, const char* name);
  // One that DLPack's C exchange API has lent already.
  Array open(nb::handle object, const dlpack::Tensor& lent, const char* name);
  // The array as the tensor of a field.
  tw_tensor fit(const Array& array, const Place& place);
  tw_tensor read(nb::handle object, const Place& place) { return fit(open(object, place.name), place); }

  // Whether an array of so many axes has heads before tokens at this place.
  bool swaps(const Place& place, int rank) const { return place.has_heads && heads_first_ && rank == 4; }
  dlpack::Device device() const { return device_; }
  bool on_gpu() const { return device_.type == dlpack::kCuda; }
  void* stream() const;

 private:
  static constexpr size_t kUsual = 8;  // arrays of most calls

  Array import(nb::handle object, const char* name);
  Array read_interface(nb::handle object, const char* name);
  void check_device(const Array& array, const char* name);

  bool heads_first_;
  Stream stream_;
  dlpack::Device device_{0, 0};
  const char* first_name_ = nullptr;
  std::vector<nb::object> held_;  // other threads may drop the caller's references meanwhile
  std::vector<dlpack::Managed*> managed_;
  std::vector<dlpack::VersionedManaged*> versioned_;
};

// The strides of row-major memory with the array's shape.
void set_row_major(Array& array);

}  // namespace tilewise::python
