// In C, where cleanup handlers need no unwinding: to unwind a thread through C++ would drop Python's objects without
// the lock, and aborts at the first function that must not throw.
#include "binding/lock.h"

#include <pthread.h>
#include <unistd.h>

static void wait_for_the_end(void* unused) {
  (void)unused;
  for (;;) pause();
}

void tilewise_take_lock(PyThreadState* state) {
  pthread_cleanup_push(wait_for_the_end, NULL);
  PyEval_RestoreThread(state);
  pthread_cleanup_pop(0);
}
