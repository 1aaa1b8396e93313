// Elementary functions on vectors, in terms of Simd's traits.
#pragma once

namespace tilewise::cpu {

inline constexpr float kLog2e = 1.442695040888963407f;
inline constexpr double kLn2 = 0.693147180559945309;

// 2^x for x < 127, error 2.1e-7 (degree-5 minimax on [-0.5, 0.5]). Below -125 it gives 2^-125. Not for NaN.
template <class Simd>
typename Simd::Vec exp2(typename Simd::Vec x) {
  using S = Simd;
  const auto round = S::set(0x1.8p23f);
  x = S::clamp_below(x, -125);
  const auto shifted = S::add(x, round);
  const auto f = S::sub(x, S::sub(shifted, round));
  auto p = S::fma(S::set(1.327647198e-3f), f, S::set(9.675541334e-3f));
  p = S::fma(p, f, S::set(5.550713274e-2f));
  p = S::fma(p, f, S::set(2.402211972e-1f));
  p = S::fma(p, f, S::set(6.931469671e-1f));
  p = S::fma(p, f, S::set(1.000000072f));
  return S::scale_exponent(p, shifted);
}

}  // namespace tilewise::cpu
