#include "core/text.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace tilewise {

void Text::format(const char* pattern, ...) {
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(chars, sizeof chars, pattern, arguments);
  va_end(arguments);
}

void Text::append(const char* pattern, ...) {
  const size_t used = std::strlen(chars);
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(chars + used, sizeof chars - used, pattern, arguments);
  va_end(arguments);
}

}  // namespace tilewise
