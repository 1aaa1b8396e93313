// The calls of the C interface, on Python's arrays. Options are those of binding/options.h; heads_first: 4-D arrays are
// (B,H,S,D) rather than (B,S,H,D). openmp and threads: those of HostThreads, and how many tasks at once where the
// options do not say, 0 for all cores.
#pragma once

#include "binding/errors.h"

namespace tilewise::python {

// out, or (out, lse) if lse is an array or True. out None: a new array of type out_dtype, None for that of q.
nb::object forward(nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse, nb::handle out_dtype,
                   bool heads_first, nb::dict options, uintptr_t openmp, int threads);

// (dq, dk, dv, dbias, dsink). Of `gradients`, which are in the same order, each is an array to write to, True for a
// new one or None for none.
nb::tuple backward(nb::handle dout, nb::handle q, nb::handle k, nb::handle v, nb::handle out, nb::handle lse,
                   nb::handle dlse, nb::tuple gradients, nb::handle accumulate, bool heads_first, nb::dict options,
                   uintptr_t openmp, int threads);

// (out, lse) of parts stacked along a leading axis.
nb::tuple merge(nb::handle out_parts, nb::handle lse_parts, nb::handle out, nb::handle lse, nb::handle out_dtype,
                bool heads_first, nb::handle threads);

std::string explain(nb::handle q, nb::handle k, nb::handle v, nb::handle is_backward, bool heads_first,
                    nb::dict options);
std::string info();

// {algorithm: {"flops", "bytes_read", "bytes_written"} or None}, of fast_memory fp32 elements, 0 = a quarter of L2.
nb::dict traffic(nb::handle q, nb::handle k, nb::handle v, nb::handle is_backward, bool heads_first,
                 nb::handle fast_memory, nb::dict options);

}  // namespace tilewise::python
