// Python's lock, given away while the library works.
#pragma once

#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

// As PyEval_RestoreThread; but where Python, before 3.14, would end the thread since the interpreter is gone, the
// thread waits until the process has ended.
void tilewise_take_lock(PyThreadState* state);

#ifdef __cplusplus
}
#endif
