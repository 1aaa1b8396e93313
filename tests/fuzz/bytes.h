// The bytes of one execution, taken from the front; zeros when they are used up.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace tilewise::fuzz {

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool empty() const { return size_ == 0; }

  template <class T>
  T take() {
    T value = {};
    const size_t count = std::min(sizeof value, size_);
    if (count > 0) std::memcpy(&value, data_, count);
    data_ += count, size_ -= count;
    return value;
  }
  int64_t below(int64_t count) { return take<uint8_t>() % count; }

 private:
  const uint8_t* data_;
  size_t size_;
};

}  // namespace tilewise::fuzz
