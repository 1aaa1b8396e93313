#include "cli/files/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "cli/failure.h"

namespace tilewise::cli {
namespace {

constexpr int64_t kLengthBytes = 8, kLargestHeader = 100'000'000;  // the format's own limit
constexpr std::string_view kNpyMagic = "\x93NUMPY";

struct ElementSize {
  const char* dtype;
  int64_t bytes;
};
constexpr std::array<ElementSize, 15> kElementSizes = {{{"BOOL", 1},
                                                        {"U8", 1},
                                                        {"I8", 1},
                                                        {"F8_E5M2", 1},
                                                        {"F8_E4M3", 1},
                                                        {"I16", 2},
                                                        {"U16", 2},
                                                        {"F16", 2},
                                                        {"BF16", 2},
                                                        {"I32", 4},
                                                        {"U32", 4},
                                                        {"F32", 4},
                                                        {"F64", 8},
                                                        {"I64", 8},
                                                        {"U64", 8}}};

int64_t element_bytes(const std::string& dtype) {  // 0: not known
  const auto* const found =
      std::find_if(kElementSizes.begin(), kElementSizes.end(), [&](const ElementSize& e) { return dtype == e.dtype; });
  return found == kElementSizes.end() ? 0 : found->bytes;
}

std::string read_header(const InputFile& file) {
  if (file.size() < kLengthBytes) file.reject("truncated: {} bytes, and the header length alone takes 8", file.size());
  std::array<unsigned char, kLengthBytes> little_endian;
  file.read(0, reinterpret_cast<char*>(little_endian.data()), kLengthBytes);
  if (std::memcmp(little_endian.data(), kNpyMagic.data(), kNpyMagic.size()) == 0) {
    file.reject("an .npy file, not a safetensors file; `tilewise run` takes it with --query, --key or --value");
  }
  uint64_t length = 0;
  for (int i = kLengthBytes - 1; i >= 0; --i) length = length << 8 | little_endian[static_cast<size_t>(i)];
  if (length > static_cast<uint64_t>(kLargestHeader)) {
    file.reject("not a safetensors file: its first 8 bytes are not the length of a header (the format allows {})",
                kLargestHeader);
  }
  if (static_cast<int64_t>(length) > file.size() - kLengthBytes) {
    file.reject("truncated: a header of {} bytes does not fit into the {} of the file", length, file.size());
  }
  std::string header(length, '\0');
  file.read(kLengthBytes, header.data(), static_cast<int64_t>(length));
  return header;
}

SafetensorsHeader parse(const InputFile& file, const std::string& header) {
  try {
    return parse_safetensors_header(header);
  } catch (const Failure& failure) {
    file.reject("{}", failure.what());
  }
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(path) {
  const std::string header = read_header(file_);
  header_ = parse(file_, header);
  data_begin_ = kLengthBytes + static_cast<int64_t>(header.size());
  check_data(file_.size() - data_begin_);
}

// Tensors cover the data section end to end: inside it, without overlap, without holes; each as long as its shape says.
void SafetensorsFile::check_data(int64_t data_bytes) const {
  std::vector<const SafetensorsHeader::value_type*> entries;
  for (const auto& named : header_) entries.push_back(&named);
  std::sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  int64_t covered = 0;
  for (const auto* named : entries) {
    const auto& [name, entry] = *named;
    if (entry.end < entry.begin) file_.reject("tensor {}: ends before it begins", in_quotes(name));
    if (entry.end > data_bytes) {
      file_.reject("truncated: tensor {} ends at byte {} of the data, which has {}", in_quotes(name), entry.end,
                   data_bytes);
    }
    if (entry.begin < covered) file_.reject("tensor {} overlaps the one before it", in_quotes(name));
    if (entry.begin > covered)
      file_.reject("a hole of {} bytes before tensor {}", entry.begin - covered, in_quotes(name));
    const int64_t size = element_bytes(entry.dtype);
    if (size > 0 && byte_count(entry.shape, size) != entry.end - entry.begin) {
      file_.reject("tensor {}: {} {} does not take {} bytes", in_quotes(name), entry.dtype, shape_text(entry.shape),
                   entry.end - entry.begin);
    }
    covered = entry.end;
  }
  if (covered != data_bytes) file_.reject("{} bytes after the last tensor", data_bytes - covered);
}

Array SafetensorsFile::read(const std::string& name) const {
  const auto found = header_.find(name);
  if (found == header_.end()) {
    std::string names;
    for (const auto& named : header_) names += (names.empty() ? "" : ", ") + in_quotes(named.first);
    file_.reject("no tensor {}; it has {}", in_quotes(name), names.empty() ? "none" : names.substr(0, 300));
  }
  const SafetensorsEntry& entry = found->second;
  const FileType* const type = file_type_of_safetensors(entry.dtype);
  if (!type) file_.reject("tensor {}: type {} is not one of F32, F16, BF16", in_quotes(name), in_quotes(entry.dtype));
  Array array{type->type, entry.shape, Buffer(entry.end - entry.begin, "an input tensor")};
  file_.read(data_begin_ + entry.begin, array.bytes.data(), array.bytes.size());
  return array;
}

}  // namespace tilewise::cli
