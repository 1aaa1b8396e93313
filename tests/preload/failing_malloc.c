/* For LD_PRELOAD: the FAIL_ATth allocation fails, or all from the FAIL_FROMth on. */
#include <errno.h>
#include <stdlib.h>

void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* old, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

static long number_in(const char* name) {
  const char* const text = getenv(name);
  return text ? atol(text) : 0;
}

static int fails(void) {
  static long count = 0;
  const long at = number_in("FAIL_AT"), from = number_in("FAIL_FROM");
  const long number = __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
  const int failing = number == at || (from > 0 && number >= from);
  if (failing) errno = ENOMEM;
  return failing;
}

void* malloc(size_t bytes) { return fails() ? NULL : __libc_malloc(bytes); }
void* calloc(size_t count, size_t bytes) { return fails() ? NULL : __libc_calloc(count, bytes); }
void* realloc(void* old, size_t bytes) { return fails() ? NULL : __libc_realloc(old, bytes); }
void* aligned_alloc(size_t alignment, size_t bytes) { return fails() ? NULL : __libc_memalign(alignment, bytes); }

int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  void* const taken = aligned_alloc(alignment, bytes);
  if (taken) *memory = taken;
  return taken ? 0 : ENOMEM;
}
