// Elementary functions on vectors, in terms of Simd's traits.
#pragma once

namespace tilewise::cpu {

inline constexpr float kLog2e = 1.442695040888963407f;
inline constexpr double kLn2 = 0.693147180559945309;
inline constexpr float kInfinity = __builtin_inff();

// 2^(n + f) for an n as scale_exponent() takes it and |f| <= 0.5: the polynomial is the best of degree 5 with p(0) = 1,
// its own relative error 9.7e-8.
template <class Simd, int kCount>
[[gnu::always_inline]] inline void exp2_of_parts(const typename Simd::Vec (&n)[kCount],
                                                 const typename Simd::Vec (&f)[kCount],
                                                 typename Simd::Vec (&p)[kCount]) {
  using S = Simd;
  for (int i = 0; i < kCount; ++i) p[i] = S::fma(S::set(0x1.5bba9cp-10f), f[i], S::set(0x1.3cea76p-7f));
  constexpr float kCoefficients[] = {0x1.c6b78ep-5f, 0x1.ebf9bap-3f, 0x1.62e428p-1f, 1};
  for (const float coefficient : kCoefficients) {
    for (int i = 0; i < kCount; ++i) p[i] = S::fma(p[i], f[i], S::set(coefficient));
  }
  for (int i = 0; i < kCount; ++i) p[i] = S::scale_exponent(p[i], n[i]);
}

template <class Simd>
[[gnu::always_inline]] inline typename Simd::Vec exp2_of_parts(typename Simd::Vec n, typename Simd::Vec f) {
  typename Simd::Vec p[1];
  exp2_of_parts<Simd, 1>({n}, {f}, p);
  return p[0];
}

// The least n whose 2^(n + f) is a normal number for every f. A power below it is 0: a key of no weight must not let
// its value through, and numbers that are not normal are slow.
inline constexpr float kLeastExponent = -125;

// 2^x for x < 127, relative error 1.6e-7 (1.8e-7 without FMA), exact at whole x. Below -125.5 it gives 0; NaN stays
// NaN.
template <class Simd>
typename Simd::Vec exp2(typename Simd::Vec x) {
  using S = Simd;
  const auto n = S::nearest(x);
  const auto power = exp2_of_parts<S>(S::to_integer(n), S::sub(x, n));
  return S::keep_unless(S::below(n, S::set(kLeastExponent)), power);
}

// e^x for x < 88 at the price of exp2; the error grows by |x| 2e-8 (8e-8 without FMA). Below -87 it gives 0; NaN stays
// NaN.
template <class Simd>
typename Simd::Vec exp(typename Simd::Vec x) {
  using S = Simd;
  const auto log2e = S::set(kLog2e);
  const auto n = S::nearest(S::mul(x, log2e));
  const auto power = exp2_of_parts<S>(S::to_integer(n), S::fms(x, log2e, n));
  return S::keep_unless(S::below(n, S::set(kLeastExponent)), power);
}

// x[i] = 2^(c x[i]) for c x < 127, c > 0, as accurate as exp. Below -125.5 / c it gives 0. A NaN gives any number. Step
// by step for all kCount, so that each one's latency is filled by the others.
template <class Simd>
struct Exp2OfMultiple {
  using Vec = typename Simd::Vec;
  float c;

  explicit Exp2OfMultiple(float c) : c(c) {}

  template <int kCount>
  [[gnu::always_inline]] void apply(Vec (&x)[kCount]) const {
    constexpr float kRound = 0x1.8p23f;  // round + n has n in its low bits
    const Vec round = Simd::set(kRound), least = Simd::set(kRound + kLeastExponent), factor = Simd::set(c);
    Vec shifted[kCount], f[kCount];
    for (int i = 0; i < kCount; ++i) shifted[i] = Simd::fma(x[i], factor, round);
    for (int i = 0; i < kCount; ++i) f[i] = Simd::sub(round, shifted[i]);
    for (int i = 0; i < kCount; ++i) f[i] = Simd::fma(x[i], factor, f[i]);
    exp2_of_parts<Simd>(shifted, f, x);
    for (int i = 0; i < kCount; ++i) x[i] = Simd::keep_unless(Simd::below(shifted[i], least), x[i]);
  }
};

template <class Simd>
typename Simd::Vec absolute(typename Simd::Vec x) {
  return Simd::max(x, Simd::sub(Simd::set(0), x));
}

// tanh, within 2 ulp everywhere; NaN stays NaN. Near 0 an odd polynomial (Cephes' tanhf), for 1 - 2 / (e^2x + 1)
// would cancel there.
template <class Simd>
typename Simd::Vec tanh(typename Simd::Vec x) {
  using S = Simd;
  const auto magnitude = S::min(S::set(10), absolute<S>(x));  // tanh 10 is 1 in fp32
  const auto square = S::mul(x, x);
  auto p = S::fma(S::set(-5.70498872745e-3f), square, S::set(2.06390887954e-2f));
  p = S::fma(p, square, S::set(-5.37397155531e-2f));
  p = S::fma(p, square, S::set(1.33314422036e-1f));
  p = S::fma(p, square, S::set(-3.33332819422e-1f));
  const auto near = S::fma(S::mul(p, square), x, x);
  const auto power = exp2<S>(S::mul(magnitude, S::set(2 * kLog2e)));
  const auto far = S::sub(S::set(1), S::div(S::set(2), S::add(power, S::set(1))));
  const auto signed_far = S::select(S::below(x, S::set(0)), S::sub(S::set(0), far), far);
  return S::select(S::below(magnitude, S::set(0.625f)), near, signed_far);
}

}  // namespace tilewise::cpu
