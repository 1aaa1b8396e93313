// tilewise.torch.attention where nothing but the call has to be done: found out, and done, in one go.
#pragma once

#include "binding/errors.h"

namespace tilewise::python {

// The forward into new tensors: out, or (out, lse). None, and nothing done, where a tensor is not plain (look.h), has
// to be copied or cast first, or is to be recorded, or where anything looks on, or dropout has no numbers yet. torch:
// the functions and types of PyTorch that it asks, a tuple in the order of tilewise._torch_calls.Torch.
nb::object eager(nb::handle q, nb::handle k, nb::handle v, nb::handle with_lse, bool heads_first,
                 const nb::dict& options, uintptr_t openmp, const nb::tuple& torch);

}  // namespace tilewise::python
