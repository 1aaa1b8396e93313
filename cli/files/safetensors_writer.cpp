#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/files/safetensors.h"

namespace tilewise::cli {

void write_safetensors(OutputFile& file, const NamedArrays& arrays) {
  // Wide elements first, as the reference writer does: every tensor is then aligned to its element.
  NamedArrays ordered = arrays;
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const auto& a, const auto& b) { return size_of(a.second->dtype) > size_of(b.second->dtype); });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  int64_t end = 0;
  for (const auto& [name, array] : ordered) {
    const int64_t begin = end;
    end += array->bytes.size();
    header[name] = {
        {"dtype", file_type(array->dtype)->safetensors}, {"shape", array->shape}, {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');

  std::string length;
  for (size_t i = 0; i < 8; ++i) length += static_cast<char>(text.size() >> 8 * i & 0xff);
  file.write(length);
  file.write(text);
  for (const auto& [name, array] : ordered) file.write({array->bytes.data(), static_cast<size_t>(array->bytes.size())});
}

}  // namespace tilewise::cli
