// For the readers of files: whatever is in a file, either its tensors come out or a Failure that starts with its path.
#pragma once

#include <cstring>

#include "cli/failure.h"
#include "cli/files/array.h"
#include "fuzz/memory_file.h"

namespace tilewise::fuzz {

inline void require_whole(const cli::Array& array) {
  const auto bytes = cli::byte_count(array.shape, size_of(array.dtype));
  require(bytes == array.bytes.size(), "an array has the bytes of its shape");
}

template <class Read>
int read_file(const uint8_t* data, size_t size, Read read) {
  static MemoryFile file;
  const std::string& path = file.hold(data, size);
  try {
    read(path);
  } catch (const cli::Failure& failure) {
    require(failure.code == cli::ExitCode::bad_input, "the code is that of bad input", failure.what());
    require(std::strncmp(failure.what(), path.c_str(), path.size()) == 0, "the message names the file", failure.what());
  }
  return 0;
}

}  // namespace tilewise::fuzz
