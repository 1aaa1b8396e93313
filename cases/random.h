// Random numbers that are the same on every machine and library: a case is replayed from its seed.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>

namespace tilewise::cases {

// SplitMix64 (Steele et al., OOPSLA 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t x = state_ += 0x9E3779B97F4A7C15;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    return x ^ x >> 31;
  }

  int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
  int64_t between(int64_t lo, int64_t hi) { return lo + below(hi - lo + 1); }  // both included
  bool chance(double p) { return uniform() < p; }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform() + 0x1p-54));
    return radius * std::cos(6.283185307179586 * uniform());
  }

  template <class T>
  T pick(std::initializer_list<T> from) {
    return from.begin()[below(static_cast<int64_t>(from.size()))];
  }

 private:
  uint64_t state_;
};

}  // namespace tilewise::cases
