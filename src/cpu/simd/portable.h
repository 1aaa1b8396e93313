// The compilers' vector extensions (GCC and Clang): four lanes are SSE2 on any x86-64, NEON on any AArch64, scalar code
// elsewhere. Specified in avx2.h.
#pragma once

#include <cstring>

#include "cpu/common/element.h"

namespace tilewise::cpu::portable {

template <class T, int kCount>
struct VectorOf {
  using Type [[gnu::vector_size(kCount * sizeof(T))]] = T;
};

// Any number of lanes, so that tests prove the kernels for widths that their machine lacks.
template <int kWidth, int kRows>
struct SimdOf {
  using Vec = typename VectorOf<float, kWidth>::Type;
  using Mask = Vec;  // all-ones lanes
  static constexpr int kLanes = kWidth;
  static constexpr int kTileRows = kRows, kTileCols = 2 * kWidth;    // product()
  static constexpr int kStripRows = kRows, kStripCols = 2 * kWidth;  // strip_product()

  static Vec set(float x) { return x - Vec{}; }
  static Vec add(Vec a, Vec b) { return a + b; }
  static Vec sub(Vec a, Vec b) { return a - b; }
  static Vec mul(Vec a, Vec b) { return a * b; }
  static Vec div(Vec a, Vec b) { return a / b; }
  static Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }  // rounds twice where the machine has no FMA
  static Vec fms(Vec a, Vec b, Vec c) { return a * b - c; }
  static Vec max(Vec a, Vec b) { return select(above(a, b), a, b); }
  static Vec min(Vec a, Vec b) { return select(below(a, b), a, b); }

  static Mask none() { return set(0); }
  static Mask equal(Vec a, Vec b) { return (Mask)(a == b); }
  static Mask above(Vec a, Vec b) { return (Mask)(a > b); }
  static Mask below(Vec a, Vec b) { return (Mask)(a < b); }
  static Mask not_below_equal(Vec a, Vec b) { return (Mask)(~(a <= b)); }
  static Mask is_nan(Vec a) { return not_below_equal(a, a); }
  static Mask both(Mask a, Mask b) { return floats(bits(a) & bits(b)); }
  static Mask either(Mask a, Mask b) { return floats(bits(a) | bits(b)); }
  static Mask without(Mask a, Mask b) { return floats(bits(a) & ~bits(b)); }
  static Vec keep_if(Mask mask, Vec a) { return floats(bits(mask) & bits(a)); }
  static Vec keep_unless(Mask mask, Vec a) { return floats(~bits(mask) & bits(a)); }
  static Vec select(Mask mask, Vec yes, Vec no) { return floats(select_bits(bits(mask), bits(yes), bits(no))); }
  static bool any(Mask mask) {
    const auto pairs = (Int64s)mask;
    int64_t set = 0;
    for (int i = 0; i < kLanes / 2; ++i) set |= pairs[i];
    return set != 0;
  }

  static Vec load(const float* p) { return read<Vec>(p, sizeof(Vec)); }
  static Vec load(const Half* p) { return widen_half(read<Shorts>(p, sizeof(Shorts))); }
  static Vec load(const Bfloat16* p) { return widen(read<Shorts>(p, sizeof(Shorts))); }
  static Vec load(const Boolean* p) { return __builtin_convertvector(read<Bytes>(p, kLanes), Vec); }
  static void store(float* p, Vec x) { std::memcpy(p, &x, sizeof x); }
  static void store(Half* p, Vec x) { write(p, narrow_half(x), kLanes * 2); }
  static void store(Bfloat16* p, Vec x) { write(p, narrow(x), kLanes * 2); }

  static Vec load_first(const float* p, int64_t n) { return read<Vec>(p, n * 4); }
  static Vec load_first(const Half* p, int64_t n) { return widen_half(read<Shorts>(p, n * 2)); }
  static Vec load_first(const Bfloat16* p, int64_t n) { return widen(read<Shorts>(p, n * 2)); }
  static Vec load_first(const Boolean* p, int64_t n) { return __builtin_convertvector(read<Bytes>(p, n), Vec); }
  static void store_first(float* p, Vec x, int64_t n) { std::memcpy(p, &x, n * 4); }
  static void store_first(Half* p, Vec x, int64_t n) { write(p, narrow_half(x), n * 2); }
  static void store_first(Bfloat16* p, Vec x, int64_t n) { write(p, narrow(x), n * 2); }

  static Vec nearest(Vec x) { return (x + set(0x1.8p23f)) - set(0x1.8p23f); }  // at 2^23 floats have no fraction
  static Vec to_integer(Vec whole) { return (Vec) __builtin_convertvector(whole, Ints); }

  static Vec scale_exponent(Vec p, Vec n) { return floats(bits(p) + (bits(n) << 23)); }

  static void transpose(Vec (&x)[kLanes]) {
    if constexpr (kLanes == 4) {
      transpose_4(x);
    } else {
      float square[kLanes][kLanes];
      for (int i = 0; i < kLanes; ++i) store(square[i], x[i]);
      for (int i = 0; i < kLanes; ++i)
        for (int j = 0; j < kLanes; ++j) x[i][j] = square[j][i];
    }
  }

  static void product(float* c, int64_t c_row, const float* init, int64_t init_row, const float* a, int64_t a_row,
                      int64_t a_step, const float* b, int64_t b_row, int64_t count) {
    Vec sum[kTileRows][2] = {};
    for (int64_t k = 0; k < count; ++k, a += a_step, b += b_row) {
      const Vec b0 = load(b), b1 = load(b + kLanes);
      for (int r = 0; r < kTileRows; ++r) {
        const Vec factor = set(a[r * a_row]);
        sum[r][0] = fma(factor, b0, sum[r][0]);
        sum[r][1] = fma(factor, b1, sum[r][1]);
      }
    }
    for (int r = 0; r < kTileRows; ++r)
      for (int v = 0; v < 2; ++v)
        store(c + r * c_row + v * kLanes, add(load(init + r * init_row + v * kLanes), sum[r][v]));
  }

  static void strip_product(float* c, int64_t c_row, const float* a, int64_t a_row, const float* b, int64_t b_row,
                            int64_t count) {
    product(c, c_row, c, c_row, a, a_row, 1, b, b_row, count);
  }

 private:
  static void transpose_4(Vec (&x)[4]) {
    const Vec low01 = __builtin_shufflevector(x[0], x[1], 0, 4, 1, 5);
    const Vec high01 = __builtin_shufflevector(x[0], x[1], 2, 6, 3, 7);
    const Vec low23 = __builtin_shufflevector(x[2], x[3], 0, 4, 1, 5);
    const Vec high23 = __builtin_shufflevector(x[2], x[3], 2, 6, 3, 7);
    x[0] = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
    x[1] = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
    x[2] = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
    x[3] = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
  }

  // Unsigned: sums of bits may wrap.
  using Words = typename VectorOf<uint32_t, kWidth>::Type;
  using Ints = typename VectorOf<int32_t, kWidth>::Type;
  using Int64s = typename VectorOf<int64_t, kWidth / 2>::Type;
  using Bytes = typename VectorOf<uint8_t, kWidth>::Type;
  using Shorts = typename VectorOf<uint16_t, kWidth>::Type;

  static Words bits(Vec x) { return (Words)x; }
  static Vec floats(Words x) { return (Vec)x; }
  static Words bits(uint32_t x) { return x - Words{}; }
  static Words select_bits(Words mask, Words yes, Words no) { return (mask & yes) | (~mask & no); }
  // Of words below 2^31, which are cheaper to compare as signed numbers.
  static Words below_bits(Words a, int32_t b) { return (Words)((Ints)a < b); }

  template <class T>
  static T read(const void* p, int64_t bytes) {
    T x = {};
    std::memcpy(&x, p, bytes);
    return x;
  }
  static void write(void* p, Shorts x, int64_t bytes) { std::memcpy(p, &x, bytes); }

  static Vec widen(Shorts x) { return floats(__builtin_convertvector(x, Words) << 16); }

  static Shorts narrow(Vec x) {
    const Words even = bits(x) + ((bits(x) >> 16) & 1) + 0x7fff;
    const Words kept = select_bits(bits(is_nan(x)), bits(x) | 0x400000, even);
    return __builtin_convertvector(kept >> 16, Shorts);
  }

  // The exponent's bias grows by 112; that of Inf and NaN by 224. A subnormal is normal after it: as 2^-14 + x, less
  // 2^-14.
  static Vec widen_half(Shorts x) {
    const Words half = __builtin_convertvector(x, Words);
    const Words magnitude = (half & 0x7fff) << 13;
    const Words normal = magnitude + (112 << 23), special = magnitude + (224 << 23);
    const Vec subnormal = floats(magnitude + (113 << 23)) - set(0x1p-14f);
    Words wide = select_bits(below_bits(magnitude, 31 << 23), normal, special);
    wide = select_bits(below_bits(magnitude, 1 << 23), bits(subnormal), wide);
    return floats(wide | ((half & 0x8000) << 16));
  }

  // 65520 and more is Inf. Adding 0.5 to a subnormal result rounds it at the place where its last bit is.
  static Shorts narrow_half(Vec x) {
    const Words sign = (bits(x) >> 16) & 0x8000, magnitude = bits(x) & 0x7fffffff;
    const Words normal = (magnitude - (112 << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    const Words subnormal = bits(floats(magnitude) + set(0.5f)) - bits(set(0.5f));
    const Words special = select_bits(bits(is_nan(x)), bits(0x7e00u), bits(0x7c00u));
    Words narrow = select_bits(below_bits(magnitude, 143 << 23), normal, special);
    narrow = select_bits(below_bits(magnitude, 113 << 23), subnormal, narrow);
    return __builtin_convertvector(narrow | sign, Shorts);
  }
};

using Simd = SimdOf<4, 4>;  // product(): 8 sums, 2 vectors and a broadcast of 16 registers

}  // namespace tilewise::cpu::portable
