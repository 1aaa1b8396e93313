// Text in a fixed buffer: messages are made without allocating, so they can be made when memory has run out.
#pragma once

#include <cstdint>

namespace tilewise {

struct Text {
  char chars[384];  // as far as its end; a call makes many that stay empty, so the rest is left as it is

  Text() { chars[0] = 0; }
  bool empty() const { return chars[0] == 0; }
  // printf's rules; what does not fit is cut.
  [[gnu::format(printf, 2, 3)]] void format(const char* pattern, ...);
  [[gnu::format(printf, 2, 3)]] void append(const char* pattern, ...);
};

// As printf's %lld takes it.
[[gnu::always_inline]] static inline long long ll(int64_t number) { return number; }

}  // namespace tilewise
