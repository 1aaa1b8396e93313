// Elementary functions on vectors, in terms of Simd's traits.
#pragma once

namespace tilewise::cpu {

inline constexpr float kLog2e = 1.442695040888963407f;
inline constexpr double kLn2 = 0.693147180559945309;
inline constexpr float kInfinity = __builtin_inff();

// 2^(n + f) for a whole n given as n + 1.5 * 2^23 and |f| <= 0.5: the polynomial is the best of degree 5 with p(0) = 1,
// its own relative error 9.7e-8.
template <class Simd>
typename Simd::Vec exp2_of_parts(typename Simd::Vec shifted_n, typename Simd::Vec f) {
  using S = Simd;
  auto p = S::fma(S::set(0x1.5bba9cp-10f), f, S::set(0x1.3cea76p-7f));
  p = S::fma(p, f, S::set(0x1.c6b78ep-5f));
  p = S::fma(p, f, S::set(0x1.ebf9bap-3f));
  p = S::fma(p, f, S::set(0x1.62e428p-1f));
  p = S::fma(p, f, S::set(1));
  return S::scale_exponent(p, shifted_n);
}

// 2^x for x < 127, relative error 1.6e-7 (1.8e-7 without FMA), exact at whole x. Below -125 it gives 2^-125. Not for
// NaN.
template <class Simd>
typename Simd::Vec exp2(typename Simd::Vec x) {
  using S = Simd;
  const auto round = S::set(0x1.8p23f);
  x = S::clamp_below(x, -125);
  const auto shifted = S::add(x, round);
  return exp2_of_parts<S>(shifted, S::sub(x, S::sub(shifted, round)));
}

// e^x for x < 88 at the price of exp2; the error grows by |x| 2e-8. Below -86.6 it gives 2^-125. Not for NaN.
template <class Simd>
typename Simd::Vec exp(typename Simd::Vec x) {
  using S = Simd;
  const auto round = S::set(0x1.8p23f), log2e = S::set(kLog2e);
  x = S::clamp_below(x, -86.6f);
  const auto shifted = S::fma(x, log2e, round);
  return exp2_of_parts<S>(shifted, S::fma(x, log2e, S::sub(round, shifted)));
}

template <class Simd>
typename Simd::Vec absolute(typename Simd::Vec x) {
  return Simd::max(x, Simd::sub(Simd::set(0), x));
}

// tanh, within 2 ulp everywhere; NaN stays NaN. Near 0 an odd polynomial (Cephes' tanhf), for 1 - 2 / (e^2x + 1)
// would cancel there.
template <class Simd>
typename Simd::Vec tanh(typename Simd::Vec x) {
  using S = Simd;
  const auto magnitude = S::min(absolute<S>(x), S::set(10));  // tanh 10 is 1 in fp32
  const auto square = S::mul(x, x);
  auto p = S::fma(S::set(-5.70498872745e-3f), square, S::set(2.06390887954e-2f));
  p = S::fma(p, square, S::set(-5.37397155531e-2f));
  p = S::fma(p, square, S::set(1.33314422036e-1f));
  p = S::fma(p, square, S::set(-3.33332819422e-1f));
  const auto near = S::fma(S::mul(p, square), x, x);
  const auto power = exp2<S>(S::mul(magnitude, S::set(2 * kLog2e)));
  const auto far = S::sub(S::set(1), S::div(S::set(2), S::add(power, S::set(1))));
  const auto signed_far = S::select(S::below(x, S::set(0)), S::sub(S::set(0), far), far);
  const auto result = S::select(S::below(magnitude, S::set(0.625f)), near, signed_far);
  return S::select(S::is_nan(x), x, result);
}

}  // namespace tilewise::cpu
