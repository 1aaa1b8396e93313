// Calls of the library, where and without what they run: without Python's lock, on threads of the host or on a stream.
#pragma once

#include "binding/array.h"

namespace tilewise::python {

class Runner {
 public:
  // openmp: the address of GOMP_parallel, which the OpenMP of GCC, LLVM and Intel all have; its threads then do the
  // work of the CPU; 0 for the library's own.
  Runner(Arrays& arrays, uintptr_t openmp);
  // allocate: takes q and a number of bytes, gives an array of so many on the GPU for a workspace.
  Runner(Arrays& arrays, uintptr_t openmp, nb::handle allocate, nb::handle q);
  Runner(const Runner&) = delete;

  // Raises what the library refuses. grad null: the forward.
  void attention(const tw_attention& problem, const tw_attention_grad* grad);
  void merge(const tw_merge& merge);

 private:
  void plan_and_run(const tw_attention& problem, const tw_attention_grad* grad);

  Arrays& arrays_;
  nb::handle allocate_, q_;  // null: workspaces are memory of the library's own
  tw_thread_pool pool_;
  tw_exec exec_;
};

}  // namespace tilewise::python
