// The functions of tilewise._core, as _core.pyi describes them.
#pragma once

#include "binding/options.h"

namespace tilewise::python {

nb::object forward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle out_dtype,
                   bool heads_first, const nb::dict& options, uintptr_t openmp, int threads, nb::handle stream,
                   nb::handle allocate);
// With q, k, v and the options read. dtype: of a new out.
nb::object run_forward(Arrays& arrays, Call& call, nb::handle q, nb::handle out, nb::handle lse, int32_t dtype,
                       uintptr_t openmp, int threads, nb::handle allocate);
nb::tuple backward(nb::handle dout, nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
                   nb::handle dlse, const nb::tuple& gradients, nb::handle accumulate, bool heads_first,
                   const nb::dict& options, uintptr_t openmp, int threads, nb::handle stream, nb::handle allocate);
nb::tuple merge(nb::handle out_parts, nb::handle lse_parts, nb::handle out, nb::handle lse, nb::handle out_dtype,
                bool heads_first, nb::handle threads, nb::handle stream);

std::string explain(nb::handle q, nb::handle k, nb::handle v, nb::handle is_backward, bool heads_first,
                    const nb::dict& options);
std::string info();
nb::dict traffic(nb::handle q, nb::handle k, nb::handle v, nb::handle is_backward, bool heads_first,
                 nb::handle fast_memory, const nb::dict& options);

}  // namespace tilewise::python
