#include "core/small_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <cstring>

namespace tilewise {

SmallFile::SmallFile(const char* path) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  size_t used = 0;
  for (ssize_t got; used + 1 < sizeof text && (got = read(file, text + used, sizeof text - 1 - used)) > 0;) {
    used += static_cast<size_t>(got);
  }
  text[used] = 0;
  close(file);
}

double SmallFile::number_after(const char* label, double otherwise) const {
  const char* at = std::strstr(text, label);
  if (!at) return otherwise;
  at += std::strlen(label);
  at += std::strcspn(at, "-.0123456789\n");
  return leading_number(at, otherwise);
}

double leading_number(const char* text, double otherwise) {
  double number;
  return std::from_chars(text, text + std::strlen(text), number).ec == std::errc() ? number : otherwise;
}

}  // namespace tilewise
