#include "core/rules.h"

#include <cstdarg>
#include <cstdio>

namespace tilewise {
namespace {

Status broken(tw_status code, const char* pattern, va_list arguments) {
  Status status;
  status.code = code;
  std::vsnprintf(status.message.chars, sizeof status.message.chars, pattern, arguments);
  return status;
}

}  // namespace

void Rules::require(bool kept_now, const char* pattern, ...) {
  if (kept_now || !kept()) return;
  va_list arguments;
  va_start(arguments, pattern);
  first_broken_ = broken(TW_INVALID_ARGUMENT, pattern, arguments);
  va_end(arguments);
}

void Rules::serve(bool served, const char* pattern, ...) {
  if (served || !kept()) return;
  va_list arguments;
  va_start(arguments, pattern);
  first_broken_ = broken(TW_UNSUPPORTED, pattern, arguments);
  va_end(arguments);
}

}  // namespace tilewise
