// A regular file opened for reading. Every failure is a Failure(bad_input) that starts with the path.
#pragma once

#include <cstdint>
#include <string>

#include "cli/failure.h"

namespace tilewise::cli {

class InputFile {
 public:
  explicit InputFile(std::string path);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }
  // Also fails if the file has become shorter since it was opened.
  void read(int64_t offset, char* to, int64_t bytes) const;

  template <typename... Args>
  [[noreturn]] void reject(fmt::format_string<Args...> pattern, Args&&... args) const {
    throw Failure(ExitCode::bad_input, path_ + ": " + fmt::format(pattern, std::forward<Args>(args)...));
  }

 private:
  std::string path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
};

}  // namespace tilewise::cli
