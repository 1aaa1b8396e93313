#include "core/json_writer.h"

#include <charconv>
#include <cmath>
#include <cstdio>

namespace tilewise {

JsonWriter::JsonWriter(char* text, size_t capacity) : text_(text), capacity_(capacity) {
  if (capacity_ > 0) text_[0] = 0;
}

JsonWriter& JsonWriter::key(const char* name) {
  separate();
  put_quoted(name);
  put(": ");
  after_value_ = false;
  return *this;
}

JsonWriter& JsonWriter::string(const char* value) {
  separate();
  put_quoted(value);
  return *this;
}

JsonWriter& JsonWriter::integer(int64_t value) {
  separate();
  char digits[24];
  *std::to_chars(digits, digits + sizeof digits - 1, value).ptr = 0;
  put(digits);
  return *this;
}

JsonWriter& JsonWriter::real(double value) {
  if (!std::isfinite(value)) return null();
  separate();
  char digits[32];  // not printf: its decimal point is the locale's
  *std::to_chars(digits, digits + sizeof digits - 1, value).ptr = 0;
  put(digits);
  return *this;
}

JsonWriter& JsonWriter::boolean(bool value) {
  separate();
  put(value ? "true" : "false");
  return *this;
}

JsonWriter& JsonWriter::null() {
  separate();
  put("null");
  return *this;
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  put(bracket);
  after_value_ = false;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  put(bracket);
  after_value_ = true;
  return *this;
}

void JsonWriter::separate() {
  if (after_value_) put(", ");
  after_value_ = true;
}

void JsonWriter::put(char c) {
  if (length_ + 1 < capacity_) text_[length_] = c, text_[length_ + 1] = 0;
  ++length_;
}

void JsonWriter::put(const char* text) {
  for (; *text; ++text) put(*text);
}

void JsonWriter::put_quoted(const char* text) {
  put('"');
  for (; *text; ++text) {
    const auto byte = static_cast<unsigned char>(*text);
    if (byte == '"' || byte == '\\') {
      put('\\');
      put(*text);
    } else if (byte >= 0x20 && byte < 0x7f) {
      put(*text);
    } else {  // whatever its encoding, the answer stays JSON
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", byte);
      put(escape);
    }
  }
  put('"');
}

}  // namespace tilewise
