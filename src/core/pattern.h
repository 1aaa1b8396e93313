// Pattern: a printf pattern that is compared with its values when it is compiled, where the compiler's own check cannot
// reach: in the inline half of a variadic function.
#pragma once

#include <type_traits>

namespace tilewise {

template <class... Values>
class Pattern {
 public:
  consteval Pattern(const char* text) : text_(text) {  // NOLINT(google-explicit-constructor): stands for the text
    const char* at = text;
    const bool fit = (takes<Values>(at) && ...);
    if (!fit || next_conversion(at)) throw "the pattern and its values do not fit";
  }
  const char* text() const { return text_; }

 private:
  // Steps behind the next %; false at the end.
  static constexpr bool next_conversion(const char*& at) {
    for (; *at; ++at) {
      if (*at != '%') continue;
      ++at;
      if (*at != '%') return true;
    }
    return false;
  }

  static constexpr bool skip(const char*& at, const char* expected) {
    const char* here = at;
    for (; *expected; ++expected, ++here) {
      if (*here != *expected) return false;
    }
    at = here;
    return true;
  }

  template <class Value>
  static constexpr bool takes(const char*& at) {
    if (!next_conversion(at)) return false;
    if constexpr (std::is_convertible_v<Value, const char*>) return skip(at, "s");
    if constexpr (std::is_pointer_v<Value>) return skip(at, "p");
    if constexpr (std::is_same_v<Value, int>) return skip(at, "d");
    if constexpr (std::is_same_v<Value, unsigned>) return skip(at, "u") || skip(at, "x");
    if constexpr (std::is_same_v<Value, long long>) return skip(at, "lld");
    if constexpr (std::is_same_v<Value, unsigned long long>) return skip(at, "llu");
    if constexpr (std::is_same_v<Value, double>) return skip(at, "g");
    return false;
  }

  const char* text_;
};

}  // namespace tilewise
