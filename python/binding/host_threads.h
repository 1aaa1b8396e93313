// Threads of the program around in place of the library's own, so that both do not compete for the cores: those of its
// OpenMP, whose workers wait for their next work awake.
#pragma once

#include <cstdint>

#include "tilewise/tilewise.h"

namespace tilewise::python {

// openmp: the address of GOMP_parallel.
tw_thread_pool threads_of_openmp(uintptr_t openmp);

}  // namespace tilewise::python
