// Array: a tensor read from or written to a file; row-major, little-endian, owned.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/buffer.h"
#include "core/problem.h"

namespace tilewise::cli {

struct Array {
  Type dtype = Type::none;
  std::vector<int64_t> shape;
  Buffer bytes;

  // Zeroed.
  static Array of(Type dtype, std::vector<int64_t> shape, const char* purpose);
};

using NamedArrays = std::vector<std::pair<std::string, const Array*>>;

// What the file formats call the types that tilewise reads and writes.
struct FileType {
  Type type;
  const char* safetensors;
  const char* npy;  // null: the format has no such type
};
const FileType* file_type(Type type);
const FileType* file_type_of_safetensors(std::string_view name);
const FileType* file_type_of_npy(std::string_view descr);

// Elements of a shape times their size; nothing if that is more than int64 holds, or would be with 1 for 0: shapes of
// other tensors follow from this one.
std::optional<int64_t> byte_count(const std::vector<int64_t>& shape, int64_t element_bytes);

std::string shape_text(const std::vector<int64_t>& shape);  // "(2048, 9, 64)"

}  // namespace tilewise::cli
