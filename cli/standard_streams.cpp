#include "cli/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include "cli/failure.h"

namespace tilewise::cli {
namespace {

int g_output_error = 0;
std::string_view g_command;

// Gathers a line, so that it arrives in one piece if it is not very long.
class ErrorLine {
 public:
  void add(std::string_view text) {
    for (const char c : text) {
      const ShownByte byte = shown_byte(c);
      for (size_t i = 0; i < byte.size; ++i) put(byte.chars[i]);
    }
  }
  void end() {
    put('\n');
    flush();
  }

 private:
  void put(char c) {
    if (size_ == chars_.size()) flush();
    chars_[size_++] = c;
  }
  void flush() {
    write_error({chars_.data(), size_});
    size_ = 0;
  }

  std::array<char, 2048> chars_;
  size_t size_ = 0;
};

}  // namespace

void occupy_standard_descriptors() noexcept {
  int descriptor = 0;
  // For reading only: writing to it fails, as to the closed one.
  while ((descriptor = open("/dev/null", O_RDONLY)) >= 0 && descriptor <= STDERR_FILENO) continue;
  if (descriptor >= 0) close(descriptor);
}

void write_output(std::string_view text) noexcept {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() && g_output_error == 0) g_output_error = errno;
}

bool flush_output() noexcept {
  if (std::fflush(stdout) != 0 && g_output_error == 0) g_output_error = errno;
  errno = g_output_error;
  return g_output_error == 0;
}

void write_error(std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t done = write(STDERR_FILENO, text.data(), text.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return;
    text.remove_prefix(static_cast<size_t>(done));
  }
}

void complain(std::string_view message) noexcept {
  ErrorLine line;
  line.add("tilewise");
  if (!g_command.empty()) line.add(" "), line.add(g_command);
  line.add(": ");
  line.add(message);
  line.end();
}

void complain_of(std::string_view command) noexcept { g_command = command; }

}  // namespace tilewise::cli
