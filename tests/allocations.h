// Every allocation and every started thread of the program that allocations.cpp is part of: counted, and made to fail.
#pragma once

#include <cstdint>

namespace tilewise::test {

// A sanitizer has an allocator of its own.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kAllocationsAreCounted = false;
#else
inline constexpr bool kAllocationsAreCounted = true;
#endif

int64_t allocations();  // so far
int64_t blocks_held();  // of them not yet given back

enum class Resource { memory, threads };

// While it lives, the `first`th request from now on fails, and the `count - 1` after it.
class Shortage {
 public:
  explicit Shortage(Resource resource, int64_t first = 1, int64_t count = INT64_MAX);
  Shortage(const Shortage&) = delete;
  ~Shortage();

  bool was_felt() const;  // something has failed

 private:
  Resource resource_;
};

}  // namespace tilewise::test
