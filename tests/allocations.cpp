#include "allocations.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

namespace tilewise::test {
namespace {

std::atomic<int64_t> taken{0}, given{0};

// Requests are numbered from the start of a shortage; those from `first` to before `end` fail.
struct Supply {
  std::atomic<bool> is_short{false};
  std::atomic<int64_t> requests{0}, first{0}, end{0}, failed{0};

  bool fails() {
    if (!is_short) return false;
    const int64_t number = ++requests;
    if (number < first || number >= end) return false;
    return ++failed, true;
  }
};
Supply memory, threads;

Supply& supply_of(Resource resource) { return resource == Resource::memory ? memory : threads; }

}  // namespace

int64_t allocations() { return taken; }
int64_t blocks_held() { return taken - given; }

Shortage::Shortage(Resource resource, int64_t first, int64_t count) : resource_(resource) {
  Supply& supply = supply_of(resource);
  supply.requests = 0, supply.failed = 0;
  supply.first = first, supply.end = count < INT64_MAX - first ? first + count : INT64_MAX;
  supply.is_short = true;
}
Shortage::~Shortage() { supply_of(resource_).is_short = false; }
bool Shortage::was_felt() const { return supply_of(resource_).failed > 0; }

namespace {

// What malloc and its kin do beside what the C library's own do.
template <class Take>
void* counted(Take take) {
  if (memory.fails()) {
    errno = ENOMEM;
    return nullptr;
  }
  void* const block = take();
  taken += block != nullptr;
  return block;
}

}  // namespace
}  // namespace tilewise::test

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Every allocation of this program, the C library's own too, comes through here.
// NOLINTBEGIN(bugprone-reserved-identifier, readability-*)
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

using tilewise::test::counted;

void* malloc(size_t bytes) {
  return counted([&] { return __libc_malloc(bytes); });
}
void* calloc(size_t count, size_t bytes) {
  return counted([&] { return __libc_calloc(count, bytes); });
}
void* realloc(void* block, size_t bytes) {
  void* const moved = counted([&] { return __libc_realloc(block, bytes); });
  tilewise::test::given += block && moved;
  return moved;
}
void* memalign(size_t alignment, size_t bytes) {
  return counted([&] { return __libc_memalign(alignment, bytes); });
}
void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** block, size_t alignment, size_t bytes) {
  void* const taken = memalign(alignment, bytes);
  if (taken) *block = taken;
  return taken ? 0 : ENOMEM;
}
void free(void* block) {
  tilewise::test::given += block != nullptr;
  __libc_free(block);
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* argument) {
  static const auto create = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return tilewise::test::threads.fails() ? EAGAIN : create(thread, attributes, start, argument);
}
}
// NOLINTEND(bugprone-reserved-identifier, readability-*)
#endif
