// What tilewise.torch has to know of the tensors of each call, in one look.
#pragma once

#include "binding/dlpack.h"
#include "binding/errors.h"

namespace tilewise::python {

enum Look : int {
  kPlain = 1,    // all are of the two types, in memory of the CPU or of CUDA, which holds the numbers as they are
  kGrad = 2,     // one requires grad
  kStrides = 4,  // the last axis of one has another stride than 1
};

// Of one tensor, and what the API has lent of it.
int look(nb::handle x, nb::handle tensor_type, nb::handle parameter_type, dlpack::Tensor& tensor);
// kPlain and what else is true of the tensors, which lend by DLPack's C exchange API; 0 if they are not plain.
int look(const nb::tuple& tensors, nb::handle tensor_type, nb::handle parameter_type);

}  // namespace tilewise::python
