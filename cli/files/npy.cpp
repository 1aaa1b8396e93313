#include "cli/files/npy.h"

#include <algorithm>
#include <array>

#include "cli/files/input_file.h"

namespace tilewise::cli {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr int64_t kLargestHeader = 1 << 20;  // a header of these types takes about 100 bytes

struct Preamble {
  int64_t header_begin, header_bytes;
};

Preamble read_preamble(const InputFile& file) {
  std::array<unsigned char, 12> start = {};
  if (file.size() < 10) file.reject("truncated: {} bytes are less than any npy header", file.size());
  file.read(0, reinterpret_cast<char*>(start.data()), std::min<int64_t>(file.size(), start.size()));
  if (!std::equal(kMagic.begin(), kMagic.end(), reinterpret_cast<const char*>(start.data()))) {
    file.reject("not an npy file: it does not start with \\x93NUMPY");
  }
  const int version = start[6];
  if (version < 1 || version > 3) file.reject("npy version {}.{} is not one of 1, 2, 3", version, start[7]);
  if (version == 1) return {10, start[8] | start[9] << 8};
  if (file.size() < 12) file.reject("truncated: {} bytes are less than an npy version {} header", file.size(), version);
  return {12, start[8] | start[9] << 8 | start[10] << 16 | int64_t{start[11]} << 24};
}

NpyHeader read_header(const InputFile& file, Preamble preamble) {
  if (preamble.header_bytes > kLargestHeader) {
    file.reject("a header of {} bytes; at most {} are read", preamble.header_bytes, kLargestHeader);
  }
  if (preamble.header_bytes > file.size() - preamble.header_begin) {
    file.reject("truncated: a header of {} bytes does not fit into the {} of the file", preamble.header_bytes,
                file.size());
  }
  std::string text(static_cast<size_t>(preamble.header_bytes), '\0');
  file.read(preamble.header_begin, text.data(), preamble.header_bytes);
  try {
    return parse_npy_header(text);
  } catch (const Failure& failure) {
    file.reject("{}", failure.what());
  }
}

Type type_of(const InputFile& file, const std::string& descr) {
  if (const FileType* const type = file_type_of_npy(descr)) return type->type;
  if (descr.starts_with('>')) file.reject("type {}: big-endian arrays are not supported", in_quotes(descr));
  if (descr == "|O" || descr == "O") file.reject("type {}: object arrays are not supported", in_quotes(descr));
  if (descr.ends_with("V2")) file.reject("type {}: npy has no bf16; store it as safetensors", in_quotes(descr));
  file.reject("type {} is not one of '<f4', '<f2'", in_quotes(descr));
}

}  // namespace

Array read_npy(const std::string& path) {
  const InputFile file(path);
  const Preamble preamble = read_preamble(file);
  const NpyHeader header = read_header(file, preamble);
  const Type type = type_of(file, header.descr);
  if (header.fortran_order) file.reject("Fortran order is not supported; save numpy.ascontiguousarray(x)");
  const std::optional<int64_t> bytes = byte_count(header.shape, size_of(type));
  if (!bytes) file.reject("shape {} overflows 64 bits", shape_text(header.shape));
  const int64_t data_begin = preamble.header_begin + preamble.header_bytes, present = file.size() - data_begin;
  if (present < *bytes) {
    file.reject("truncated: shape {} takes {} bytes, {} are there", shape_text(header.shape), *bytes, present);
  }
  if (present > *bytes) file.reject("{} bytes after the array", present - *bytes);
  Array array{type, header.shape, Buffer(*bytes, "an input tensor")};
  file.read(data_begin, array.bytes.data(), *bytes);
  return array;
}

void write_npy(OutputFile& file, const Array& array) {
  const FileType* const type = file_type(array.dtype);
  if (!type->npy)
    fail(ExitCode::usage, "{}: npy has no {}; write safetensors or fp32", file.path(), name_of(type->type));
  std::string shape;
  for (const int64_t extent : array.shape) shape += fmt::format("{}, ", extent);
  if (array.shape.size() > 1) shape.resize(shape.size() - 2);
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", type->npy, shape);
  constexpr size_t kPreamble = 10, kAlignment = 64;
  header.append(kAlignment - 1 - (kPreamble + header.size()) % kAlignment, ' ');
  header += '\n';

  std::string preamble(kMagic);
  preamble += '\x01', preamble += '\0';
  preamble += static_cast<char>(header.size() & 0xff), preamble += static_cast<char>(header.size() >> 8);
  file.write(preamble);
  file.write(header);
  file.write({array.bytes.data(), static_cast<size_t>(array.bytes.size())});
}

}  // namespace tilewise::cli
