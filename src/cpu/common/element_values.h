// Elements of every type as Real, by plain arithmetic: the oracle reads and writes through these, so they know no
// instruction set and round once, to nearest even. Tests check them for each of the 65,536 patterns of a 16-bit type.
#pragma once

#include <bit>
#include <cmath>

#include "core/problem.h"

namespace tilewise::cpu {

inline float value_of_half(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffu, sign = (half & 0x8000u) << 16;
  const bool finite = magnitude < 0x7c00;
  const float value = finite ? std::bit_cast<float>(magnitude << 13) * 0x1p112f  // exponent bias 15 -> 127
                             : std::bit_cast<float>(magnitude << 13 | 0x7f800000u);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(value) | sign);
}

inline float value_of_bfloat16(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

inline uint16_t half_of(float x) {
  const uint32_t sign = std::bit_cast<uint32_t>(x) >> 16 & 0x8000u;
  const float size = std::fabs(x);
  uint32_t bits = std::bit_cast<uint32_t>(size);
  if (std::isnan(x)) {
    bits = 0x7e00;
  } else if (size >= 65520.0f) {
    bits = 0x7c00;
  } else if (size < 0x1p-14f) {
    bits = std::bit_cast<uint32_t>(size + 0.5f) - std::bit_cast<uint32_t>(0.5f);  // one ulp of 0.5 is 2^-24
  } else {
    bits = (bits + 0xfff + (bits >> 13 & 1) - (112u << 23)) >> 13;
  }
  return static_cast<uint16_t>(sign | bits);
}

inline uint16_t bfloat16_of(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// to[0..count) = neighbouring elements of t.
template <class Real>
void read_values(const Tensor& t, int64_t offset, int64_t count, Real* to) {
  const auto convert = [&](const auto* from, auto value) {
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<Real>(value(from[offset + i]));
  };
  const auto same = [](auto x) { return x; };
  if (t.type == Type::f32) convert(reinterpret_cast<const float*>(t.data), same);
  if (t.type == Type::f64) convert(reinterpret_cast<const double*>(t.data), same);
  if (t.type == Type::f16) convert(reinterpret_cast<const uint16_t*>(t.data), value_of_half);
  if (t.type == Type::bf16) convert(reinterpret_cast<const uint16_t*>(t.data), value_of_bfloat16);
}

template <class Real>
void write_values(const Tensor& t, int64_t offset, int64_t count, const Real* from) {
  const auto convert = [&](auto* to, auto element) {
    for (int64_t i = 0; i < count; ++i) to[offset + i] = element(from[i]);
  };
  if (t.type == Type::f32) convert(reinterpret_cast<float*>(t.data), [](Real x) { return static_cast<float>(x); });
  if (t.type == Type::f64) convert(reinterpret_cast<double*>(t.data), [](Real x) { return static_cast<double>(x); });
  if (t.type == Type::f16) convert(reinterpret_cast<uint16_t*>(t.data), half_of);
  if (t.type == Type::bf16) convert(reinterpret_cast<uint16_t*>(t.data), bfloat16_of);
}

template <class Real>
Real read_value(const Tensor& t, int64_t offset) {
  Real x = 0;
  read_values(t, offset, 1, &x);
  return x;
}

// x as it comes back from memory of this type; f64 keeps it.
template <class Real>
Real round_to(Type type, Real x) {
  if (type == Type::f16) return static_cast<Real>(value_of_half(half_of(static_cast<float>(x))));
  if (type == Type::bf16) return static_cast<Real>(value_of_bfloat16(bfloat16_of(static_cast<float>(x))));
  if (type == Type::f32) return static_cast<Real>(static_cast<float>(x));
  return x;
}

}  // namespace tilewise::cpu
