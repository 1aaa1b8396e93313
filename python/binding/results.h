// What the results of a call look like.
#pragma once

#include "binding/options.h"

namespace tilewise::python {

// The type of q; if that is no float, so that the library will refuse q, another one.
inline int32_t dtype_of_results(const tw_attention& problem) {
  const int32_t dtype = problem.q.dtype;
  return dtype == TW_F16 || dtype == TW_BF16 ? dtype : TW_F32;
}

// (B,Sq,H,Dv), packed as q is; without memory.
inline tw_tensor out_like(const tw_attention& problem, int32_t dtype) {
  const auto& q = problem.q.shape;
  return tw_tensor_of(nullptr, dtype, q[0], q[1], q[2], problem.v.shape[3]);
}

// (B,H,Sq), packed as q is; without memory.
inline tw_tensor lse_like(const tw_attention& problem) {
  const auto& q = problem.q.shape;
  return tw_tensor_of(nullptr, TW_F32, q[0], q[2], q[1], 1);
}

}  // namespace tilewise::python
