// Bytes as a safetensors file: its header, and every tensor in it.
#include "cli/files/safetensors.h"
#include "fuzz/reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tilewise;
  return fuzz::read_file(data, size, [](const std::string& path) {
    const cli::SafetensorsFile file(path);
    for (const auto& [name, entry] : file.header()) {
      if (cli::file_type_of_safetensors(entry.dtype)) fuzz::require_whole(file.read(name));
    }
  });
}
