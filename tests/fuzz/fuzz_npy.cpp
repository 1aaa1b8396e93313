// Bytes as an npy file.
#include "cli/files/npy.h"
#include "fuzz/reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tilewise;
  return fuzz::read_file(data, size, [](const std::string& path) { fuzz::require_whole(cli::read_npy(path)); });
}
