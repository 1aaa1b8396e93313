#include "cli/files/array.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cli/failure.h"

namespace tilewise::cli {
namespace {

constexpr std::array<FileType, 3> kFileTypes = {{
    {Type::f32, "F32", "<f4"},
    {Type::f16, "F16", "<f2"},
    {Type::bf16, "BF16", nullptr},
}};

template <typename Matches>
const FileType* find_type(Matches matches) {
  const auto* const found = std::find_if(kFileTypes.begin(), kFileTypes.end(), matches);
  return found == kFileTypes.end() ? nullptr : found;
}

}  // namespace

Array Array::of(Type dtype, std::vector<int64_t> shape, const char* purpose) {
  const std::optional<int64_t> bytes = byte_count(shape, size_of(dtype));
  if (!bytes) fail(ExitCode::usage, "{}: shape {} overflows 64 bits", purpose, shape_text(shape));
  return {dtype, std::move(shape), Buffer(*bytes, purpose)};
}

const FileType* file_type(Type type) {
  return find_type([&](const FileType& f) { return f.type == type; });
}

const FileType* file_type_of_safetensors(std::string_view name) {
  return find_type([&](const FileType& f) { return name == f.safetensors; });
}

const FileType* file_type_of_npy(std::string_view descr) {
  return find_type([&](const FileType& f) { return f.npy && descr == f.npy; });
}

std::optional<int64_t> byte_count(const std::vector<int64_t>& shape, int64_t element_bytes) {
  int64_t bytes = element_bytes;
  bool is_empty = false;
  for (const int64_t extent : shape) {
    is_empty = is_empty || extent == 0;
    if (extent < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(extent, 1), &bytes)) return {};
  }
  return is_empty ? 0 : bytes;
}

std::string shape_text(const std::vector<int64_t>& shape) { return fmt::format("({})", fmt::join(shape, ", ")); }

}  // namespace tilewise::cli
