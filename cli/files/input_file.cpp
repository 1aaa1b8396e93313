#include "cli/files/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tilewise::cli {

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  // O_NONBLOCK: opening a pipe without a writer must not wait; regular files do not mind it.
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) reject("cannot open: {}", std::strerror(errno));
  struct stat status;
  if (fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode)) {
    close(descriptor_);
    reject("not a regular file");
  }
  size_ = status.st_size;
}

InputFile::~InputFile() { close(descriptor_); }

void InputFile::read(int64_t offset, char* to, int64_t bytes) const {
  constexpr int64_t kLargest = int64_t{1} << 30;
  while (bytes > 0) {
    const ssize_t got = pread(descriptor_, to, static_cast<size_t>(std::min(bytes, kLargest)), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) reject("cannot read: {}", std::strerror(errno));
    if (got == 0) reject("truncated: ends at byte {}", offset);
    offset += got, to += got, bytes -= got;
  }
}

}  // namespace tilewise::cli
