// Threads of the program around in place of the library's own, so that both do not compete for the cores: those of its
// OpenMP, whose workers wait for their next work awake.
#pragma once

#include <cstdint>

#include "tilewise/tilewise.h"

namespace tilewise::python {

class HostThreads {
 public:
  // openmp: the address of GOMP_parallel, which the OpenMP of GCC, LLVM and Intel all have; 0 for the library's own.
  explicit HostThreads(uintptr_t openmp);
  HostThreads(const HostThreads&) = delete;

  const tw_exec* exec() const { return pool_.parallel_for ? &exec_ : nullptr; }

 private:
  tw_thread_pool pool_;
  tw_exec exec_;
};

}  // namespace tilewise::python
