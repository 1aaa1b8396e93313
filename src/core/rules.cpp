#include "core/rules.h"

#include <cstdarg>
#include <cstdio>

namespace tilewise {

void Rules::broken(tw_status code, const char* pattern, ...) {
  if (!kept()) return;
  first_broken_.code = code;
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(first_broken_.message.chars, sizeof first_broken_.message.chars, pattern, arguments);
  va_end(arguments);
}

}  // namespace tilewise
