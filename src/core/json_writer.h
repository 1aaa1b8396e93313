// JSON into a fixed buffer, as snprintf writes text: what does not fit is cut, the length of the whole is counted.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tilewise {

class JsonWriter {
 public:
  // text may be null if capacity is 0.
  JsonWriter(char* text, size_t capacity);

  // A member's key; its value follows. Commas come by themselves.
  JsonWriter& key(const char* name);

  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }

  JsonWriter& string(const char* value);
  JsonWriter& integer(int64_t value);
  JsonWriter& real(double value);  // null if it is not finite
  JsonWriter& boolean(bool value);
  JsonWriter& null();

  size_t length() const { return length_; }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  void separate();
  void put(char c);
  void put(const char* text);
  void put_quoted(const char* text);

  char* text_;
  size_t capacity_, length_ = 0;
  bool after_value_ = false;
};

}  // namespace tilewise
