#include "core/status.h"

#include <cstdarg>
#include <cstdio>

namespace tilewise {

Status failure(tw_status code, const char* pattern, ...) {
  Status status;
  status.code = code;
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(status.message.chars, sizeof status.message.chars, pattern, arguments);
  va_end(arguments);
  return status;
}

}  // namespace tilewise
