#include "core/kernel.h"

#include <cstring>

namespace tilewise {

bool names_kernel(const char* part, const char* name) {
  const size_t length = std::strlen(part);
  for (const char* at = name; length > 0 && (at = std::strstr(at, part)); ++at) {
    const bool starts = at == name || at[-1] == '.';
    const bool ends = at[length] == 0 || at[length] == '.';
    if (starts && ends) return true;
  }
  return false;
}

}  // namespace tilewise
