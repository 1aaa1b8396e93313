// A file in memory with a path of its own, written again for each execution.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "fuzz/require.h"

namespace tilewise::fuzz {

class MemoryFile {
 public:
  MemoryFile() : descriptor_(memfd_create("input", MFD_CLOEXEC)) {
    require(descriptor_ >= 0, "a file in memory can be made");
    path_ = "/proc/self/fd/" + std::to_string(descriptor_);
  }

  const std::string& hold(const uint8_t* data, size_t size) {
    const bool held = ftruncate(descriptor_, static_cast<off_t>(size)) == 0 &&
                      pwrite(descriptor_, data, size, 0) == static_cast<ssize_t>(size);
    require(held, "a file in memory takes the input");
    return path_;
  }

 private:
  int descriptor_;
  std::string path_;
};

}  // namespace tilewise::fuzz
