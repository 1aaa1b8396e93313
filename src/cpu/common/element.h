// Element types in memory, and the step from a tensor's run-time type to a compile-time one.
#pragma once

#include "core/sequence.h"

namespace tilewise::cpu {

struct Half {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};
struct Boolean {
  uint8_t byte;
};

// Calls f(element) with an element of the type that `type` names, so that f can take decltype(element).
template <class F>
[[gnu::always_inline]] inline void with_element(Type type, F f) {
  if (type == Type::f32) f(float{});
  if (type == Type::f16) f(Half{});
  if (type == Type::bf16) f(Bfloat16{});
}

template <class Element>
[[gnu::always_inline]] inline Element* element_at(const Tensor& t, int64_t offset) {
  return reinterpret_cast<Element*>(t.data) + offset;
}

// Row i of a sequence in q, out and their gradients; key j in k, v and theirs.
template <class Element>
[[gnu::always_inline]] inline Element* row_of(const Tensor& t, const Sequence& s, int64_t i, int64_t h) {
  return element_at<Element>(t, row_offset(t, s, i, h));
}
template <class Element>
[[gnu::always_inline]] inline Element* key_of(const Tensor& t, const Sequence& s, int64_t j, int64_t h) {
  return element_at<Element>(t, key_offset(t, s, j, h));
}

// Row i of lse and the tensors like it.
[[gnu::always_inline]] static inline float& lse_of(const Tensor& t, const Sequence& s, int64_t i, int64_t h) {
  return *element_at<float>(t, lse_offset(t, s, i, h));
}

// The sink's logit, -inf without one.
[[gnu::always_inline]] static inline float sink_of(const Problem& problem, int64_t h) {
  return problem.sink ? *element_at<float>(problem.sink, problem.sink.offset(h, 0, 0)) : -__builtin_inff();
}

}  // namespace tilewise::cpu
