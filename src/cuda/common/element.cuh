// Elements of the types that tensors have, and the choice of a type at run time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "core/problem.h"
#include "cuda/common/device.cuh"

namespace tilewise::cuda {

// calls(E{}) with the element type: float, __half or __nv_bfloat16.
template <class Call>
auto with_element(Type type, Call call) {
  if (type == Type::f16) return call(__half{});
  if (type == Type::bf16) return call(__nv_bfloat16{});
  return call(float{});
}

TILEWISE_DEVICE float value_of(float x) { return x; }
TILEWISE_DEVICE float value_of(__half x) { return __half2float(x); }
TILEWISE_DEVICE float value_of(__nv_bfloat16 x) { return __bfloat162float(x); }

// Rounded once, to nearest even.
template <class E>
TILEWISE_DEVICE E element_of(float x) {
  if constexpr (std::is_same_v<E, __half>) {
    return __float2half_rn(x);
  } else if constexpr (std::is_same_v<E, __nv_bfloat16>) {
    return __float2bfloat16_rn(x);
  } else {
    return x;
  }
}

// One element of a tensor whose type is known at run time only.
TILEWISE_DEVICE float read_element(const Tensor& t, int64_t offset) {
  if (t.type == Type::f16) return value_of(reinterpret_cast<const __half*>(t.data)[offset]);
  if (t.type == Type::bf16) return value_of(reinterpret_cast<const __nv_bfloat16*>(t.data)[offset]);
  return reinterpret_cast<const float*>(t.data)[offset];
}
TILEWISE_DEVICE void write_element(const Tensor& t, int64_t offset, float x) {
  if (t.type == Type::f16) {
    reinterpret_cast<__half*>(t.data)[offset] = element_of<__half>(x);
  } else if (t.type == Type::bf16) {
    reinterpret_cast<__nv_bfloat16*>(t.data)[offset] = element_of<__nv_bfloat16>(x);
  } else {
    reinterpret_cast<float*>(t.data)[offset] = x;
  }
}

}  // namespace tilewise::cuda
