// AVX2 + FMA + F16C: the vector operations and the two register tiles in which the kernels are written. What each must
// do is said here; the files of other instruction sets have the same names and say only what is theirs.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "cpu/common/element.h"

namespace tilewise::cpu::avx2 {

struct Simd {
  using Vec = __m256;
  using Mask = Vec;  // all-ones lanes
  static constexpr int kLanes = 8;
  static constexpr int kTileRows = 4, kTileCols = 24;    // product(): 12 sums, 7 loads for 12 FMAs; 24 = one panel
  static constexpr int kStripRows = 6, kStripCols = 16;  // strip_product(): 12 sums, 8 loads; 16 divides every d well

  static Vec set(float x) { return _mm256_set1_ps(x); }
  static Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
  static Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
  static Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static Vec fms(Vec a, Vec b, Vec c) { return _mm256_fmsub_ps(a, b, c); }
  static Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }  // b if either is NaN
  static Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }  // b if either is NaN

  static Mask none() { return _mm256_setzero_ps(); }
  static Mask equal(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
  static Mask above(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
  static Mask below(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static Mask not_below_equal(Vec a, Vec b) { return _mm256_cmp_ps(a, b, _CMP_NLE_UQ); }  // true for NaN
  static Mask is_nan(Vec a) { return _mm256_cmp_ps(a, a, _CMP_UNORD_Q); }
  static Mask both(Mask a, Mask b) { return _mm256_and_ps(a, b); }
  static Mask either(Mask a, Mask b) { return _mm256_or_ps(a, b); }
  static Mask without(Mask a, Mask b) { return _mm256_andnot_ps(b, a); }  // a and not b
  static Vec keep_if(Mask mask, Vec a) { return _mm256_and_ps(mask, a); }
  static Vec keep_unless(Mask mask, Vec a) { return _mm256_andnot_ps(mask, a); }
  static Vec select(Mask mask, Vec yes, Vec no) { return _mm256_blendv_ps(no, yes, mask); }
  static bool any(Mask mask) { return _mm256_movemask_ps(mask) != 0; }

  static Vec load(const float* p) { return _mm256_loadu_ps(p); }
  static Vec load(const Half* p) { return _mm256_cvtph_ps(load_16(p)); }
  static Vec load(const Bfloat16* p) { return widen(load_16(p)); }
  static Vec load(const Boolean* p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_8(p))); }

  // To 16 bits: to nearest even; a NaN stays one.
  static void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
  static void store(Half* p, Vec x) { store_16(p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT)); }
  static void store(Bfloat16* p, Vec x) { store_16(p, narrow(x)); }

  // Only the first n elements, 0 < n < kLanes, touch memory; loads give zeros for the rest.
  static Vec load_first(const float* p, int64_t n) { return _mm256_maskload_ps(p, first(n)); }
  static Vec load_first(const Half* p, int64_t n) { return _mm256_cvtph_ps(load_first_16(p, n)); }
  static Vec load_first(const Bfloat16* p, int64_t n) { return widen(load_first_16(p, n)); }
  static Vec load_first(const Boolean* p, int64_t n) {
    char bytes[8] = {};
    copy(bytes, p, n);
    return load(reinterpret_cast<const Boolean*>(bytes));
  }
  static void store_first(float* p, Vec x, int64_t n) { _mm256_maskstore_ps(p, first(n), x); }
  static void store_first(Half* p, Vec x, int64_t n) {
    store_first_16(p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT), n);
  }
  static void store_first(Bfloat16* p, Vec x, int64_t n) { store_first_16(p, narrow(x), n); }

  // The whole number nearest to |x| < 2^22, ties to even; and a whole number as an integer in the lane's bits.
  static Vec nearest(Vec x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static Vec to_integer(Vec whole) { return _mm256_castsi256_ps(_mm256_cvtps_epi32(whole)); }

  // 2^n p for p in (0.5, 2), by adding to its exponent; n is an integer in the low 9 bits of its lane. A NaN p with an
  // n that was made of NaN stays NaN.
  static Vec scale_exponent(Vec p, Vec n) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), exponent));
  }

  // The square of kLanes vectors.
  static void transpose(Vec (&x)[8]) {
    Vec t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
      for (int j = 0; j < 2; ++j) {
        u[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + 2 + j], 0x44);
        u[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + 2 + j], 0xee);
      }
    for (int i = 0; i < 4; ++i) {
      x[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
      x[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
  }

  // c[r][0..kTileCols) = init[r][0..kTileCols) + sum over k < count of a[r * a_row + k * a_step] * b[k][0..kTileCols),
  // r < kTileRows; count is a positive multiple of 4. Strides count floats. `init` is added last: what sums many blocks
  // then rounds once a block, not once a key.
  // From memory to memory in assembly, because GCC 12 folds the b loads into the FMAs (16 loads for 12 FMAs: 67 % of
  // peak) or spills sums; nothing is left for it to allocate.
  static void product(float* c, int64_t c_row, const float* init, int64_t init_row, const float* a, int64_t a_row,
                      int64_t a_step, const float* b, int64_t b_row, int64_t count) {
    const int64_t row = a_row * 4, row3 = a_row * 12, step = a_step * 4, b_next = b_row * 4, c_next = c_row * 4;
    const int64_t init_next = init_row * 4;
    asm volatile(
        "vxorps %%ymm0, %%ymm0, %%ymm0\n\t  vxorps %%ymm1, %%ymm1, %%ymm1\n\t  vxorps %%ymm2, %%ymm2, %%ymm2\n\t"
        "vxorps %%ymm3, %%ymm3, %%ymm3\n\t  vxorps %%ymm4, %%ymm4, %%ymm4\n\t  vxorps %%ymm5, %%ymm5, %%ymm5\n\t"
        "vxorps %%ymm6, %%ymm6, %%ymm6\n\t  vxorps %%ymm7, %%ymm7, %%ymm7\n\t  vxorps %%ymm8, %%ymm8, %%ymm8\n\t"
        "vxorps %%ymm9, %%ymm9, %%ymm9\n\t  vxorps %%ymm10, %%ymm10, %%ymm10\n\t  vxorps %%ymm11, %%ymm11, %%ymm11\n\t"
        ".p2align 5\n"
        "1:\n\t"
        ".rept 4\n\t"
        "vmovups (%[b]), %%ymm12\n\t    vbroadcastss (%[a]), %%ymm15\n\t"
        "vmovups 32(%[b]), %%ymm13\n\t  vmovups 64(%[b]), %%ymm14\n\t"
        "vfmadd231ps %%ymm12, %%ymm15, %%ymm0\n\t"
        "vfmadd231ps %%ymm13, %%ymm15, %%ymm1\n\t"
        "vfmadd231ps %%ymm14, %%ymm15, %%ymm2\n\t"
        "vbroadcastss (%[a], %[row]), %%ymm15\n\t"
        "add %[b_next], %[b]\n\t"
        "vfmadd231ps %%ymm12, %%ymm15, %%ymm3\n\t"
        "vfmadd231ps %%ymm13, %%ymm15, %%ymm4\n\t"
        "vfmadd231ps %%ymm14, %%ymm15, %%ymm5\n\t"
        "vbroadcastss (%[a], %[row], 2), %%ymm15\n\t"
        "vfmadd231ps %%ymm12, %%ymm15, %%ymm6\n\t"
        "vfmadd231ps %%ymm13, %%ymm15, %%ymm7\n\t"
        "vfmadd231ps %%ymm14, %%ymm15, %%ymm8\n\t"
        "vbroadcastss (%[a], %[row3]), %%ymm15\n\t"
        "add %[step], %[a]\n\t"
        "vfmadd231ps %%ymm12, %%ymm15, %%ymm9\n\t"
        "vfmadd231ps %%ymm13, %%ymm15, %%ymm10\n\t"
        "vfmadd231ps %%ymm14, %%ymm15, %%ymm11\n\t"
        ".endr\n\t"
        "sub $4, %[count]\n\t"
        "jnz 1b\n\t"
        "vaddps (%[init]), %%ymm0, %%ymm0\n\t  vaddps 32(%[init]), %%ymm1, %%ymm1\n\t  vaddps 64(%[init]), %%ymm2, "
        "%%ymm2\n\t"
        "vmovups %%ymm0, (%[c])\n\t  vmovups %%ymm1, 32(%[c])\n\t  vmovups %%ymm2, 64(%[c])\n\t"
        "add %[init_next], %[init]\n\t  add %[c_next], %[c]\n\t"
        "vaddps (%[init]), %%ymm3, %%ymm3\n\t  vaddps 32(%[init]), %%ymm4, %%ymm4\n\t  vaddps 64(%[init]), %%ymm5, "
        "%%ymm5\n\t"
        "vmovups %%ymm3, (%[c])\n\t  vmovups %%ymm4, 32(%[c])\n\t  vmovups %%ymm5, 64(%[c])\n\t"
        "add %[init_next], %[init]\n\t  add %[c_next], %[c]\n\t"
        "vaddps (%[init]), %%ymm6, %%ymm6\n\t  vaddps 32(%[init]), %%ymm7, %%ymm7\n\t  vaddps 64(%[init]), %%ymm8, "
        "%%ymm8\n\t"
        "vmovups %%ymm6, (%[c])\n\t  vmovups %%ymm7, 32(%[c])\n\t  vmovups %%ymm8, 64(%[c])\n\t"
        "add %[init_next], %[init]\n\t  add %[c_next], %[c]\n\t"
        "vaddps (%[init]), %%ymm9, %%ymm9\n\t  vaddps 32(%[init]), %%ymm10, %%ymm10\n\t  vaddps 64(%[init]), %%ymm11, "
        "%%ymm11\n\t"
        "vmovups %%ymm9, (%[c])\n\t  vmovups %%ymm10, 32(%[c])\n\t  vmovups %%ymm11, 64(%[c])\n\t"
        : [a] "+r"(a), [b] "+r"(b), [c] "+r"(c), [init] "+r"(init), [count] "+r"(count)
        : [row] "r"(row), [row3] "r"(row3), [step] "r"(step), [b_next] "r"(b_next), [c_next] "r"(c_next),
          [init_next] "r"(init_next)
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
          "xmm13", "xmm14", "xmm15", "memory", "cc");
  }

  // c[r][0..kStripCols) += sum over k < count of a[r * a_row + k] * b[k][0..kStripCols),  r < kStripRows; count is a
  // positive multiple of 4.
  static void strip_product(float* c, int64_t c_row, const float* a, int64_t a_row, const float* b, int64_t b_row,
                            int64_t count) {
    const int64_t row = a_row * 4, row3 = a_row * 12, row5 = a_row * 20, b_next = b_row * 4, c_next = c_row * 4;
    asm volatile(
        "vxorps %%ymm0, %%ymm0, %%ymm0\n\t  vxorps %%ymm1, %%ymm1, %%ymm1\n\t  vxorps %%ymm2, %%ymm2, %%ymm2\n\t"
        "vxorps %%ymm3, %%ymm3, %%ymm3\n\t  vxorps %%ymm4, %%ymm4, %%ymm4\n\t  vxorps %%ymm5, %%ymm5, %%ymm5\n\t"
        "vxorps %%ymm6, %%ymm6, %%ymm6\n\t  vxorps %%ymm7, %%ymm7, %%ymm7\n\t  vxorps %%ymm8, %%ymm8, %%ymm8\n\t"
        "vxorps %%ymm9, %%ymm9, %%ymm9\n\t  vxorps %%ymm10, %%ymm10, %%ymm10\n\t  vxorps %%ymm11, %%ymm11, %%ymm11\n\t"
        ".p2align 5\n"
        "1:\n\t"
        ".rept 4\n\t"
        "vmovups (%[b]), %%ymm12\n\t    vbroadcastss (%[a]), %%ymm14\n\t"
        "vmovups 32(%[b]), %%ymm13\n\t  vbroadcastss (%[a], %[row]), %%ymm15\n\t"
        "add %[b_next], %[b]\n\t"
        "vfmadd231ps %%ymm12, %%ymm14, %%ymm0\n\t"
        "vfmadd231ps %%ymm13, %%ymm14, %%ymm1\n\t"
        "vbroadcastss (%[a], %[row], 2), %%ymm14\n\t"
        "vfmadd231ps %%ymm12, %%ymm15, %%ymm2\n\t"
        "vfmadd231ps %%ymm13, %%ymm15, %%ymm3\n\t"
        "vbroadcastss (%[a], %[row3]), %%ymm15\n\t"
        "vfmadd231ps %%ymm12, %%ymm14, %%ymm4\n\t"
        "vfmadd231ps %%ymm13, %%ymm14, %%ymm5\n\t"
        "vbroadcastss (%[a], %[row], 4), %%ymm14\n\t"
        "vfmadd231ps %%ymm12, %%ymm15, %%ymm6\n\t"
        "vfmadd231ps %%ymm13, %%ymm15, %%ymm7\n\t"
        "vbroadcastss (%[a], %[row5]), %%ymm15\n\t"
        "add $4, %[a]\n\t"
        "vfmadd231ps %%ymm12, %%ymm14, %%ymm8\n\t"
        "vfmadd231ps %%ymm13, %%ymm14, %%ymm9\n\t"
        "vfmadd231ps %%ymm12, %%ymm15, %%ymm10\n\t"
        "vfmadd231ps %%ymm13, %%ymm15, %%ymm11\n\t"
        ".endr\n\t"
        "sub $4, %[count]\n\t"
        "jnz 1b\n\t"
        "vaddps (%[c]), %%ymm0, %%ymm0\n\t  vaddps 32(%[c]), %%ymm1, %%ymm1\n\t"
        "vmovups %%ymm0, (%[c])\n\t  vmovups %%ymm1, 32(%[c])\n\t  add %[c_next], %[c]\n\t"
        "vaddps (%[c]), %%ymm2, %%ymm2\n\t  vaddps 32(%[c]), %%ymm3, %%ymm3\n\t"
        "vmovups %%ymm2, (%[c])\n\t  vmovups %%ymm3, 32(%[c])\n\t  add %[c_next], %[c]\n\t"
        "vaddps (%[c]), %%ymm4, %%ymm4\n\t  vaddps 32(%[c]), %%ymm5, %%ymm5\n\t"
        "vmovups %%ymm4, (%[c])\n\t  vmovups %%ymm5, 32(%[c])\n\t  add %[c_next], %[c]\n\t"
        "vaddps (%[c]), %%ymm6, %%ymm6\n\t  vaddps 32(%[c]), %%ymm7, %%ymm7\n\t"
        "vmovups %%ymm6, (%[c])\n\t  vmovups %%ymm7, 32(%[c])\n\t  add %[c_next], %[c]\n\t"
        "vaddps (%[c]), %%ymm8, %%ymm8\n\t  vaddps 32(%[c]), %%ymm9, %%ymm9\n\t"
        "vmovups %%ymm8, (%[c])\n\t  vmovups %%ymm9, 32(%[c])\n\t  add %[c_next], %[c]\n\t"
        "vaddps (%[c]), %%ymm10, %%ymm10\n\t  vaddps 32(%[c]), %%ymm11, %%ymm11\n\t"
        "vmovups %%ymm10, (%[c])\n\t  vmovups %%ymm11, 32(%[c])\n\t"
        : [a] "+r"(a), [b] "+r"(b), [c] "+r"(c), [count] "+r"(count)
        : [row] "r"(row), [row3] "r"(row3), [row5] "r"(row5), [b_next] "r"(b_next), [c_next] "r"(c_next)
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
          "xmm13", "xmm14", "xmm15", "memory", "cc");
  }

 private:
  static __m128i load_16(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
  static void store_16(void* p, __m128i x) { _mm_storeu_si128(static_cast<__m128i*>(p), x); }

  static __m256i first(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }

  static __m128i load_8(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }

  static __m128i load_first_16(const void* p, int64_t n) {
    char elements[16] = {};
    copy(elements, p, n * 2);
    return load_16(elements);
  }
  static void store_first_16(void* p, __m128i x, int64_t n) {
    char elements[16];
    store_16(elements, x);
    copy(p, elements, n * 2);
  }

  static Vec widen(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }
  static __m128i narrow(Vec x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i even = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i kept = _mm256_blendv_epi8(even, quiet, _mm256_castps_si256(is_nan(x)));
    const __m256i high = _mm256_srli_epi32(kept, 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
  }

  // Fewer than 16 bytes, by the bits of their number: no loop, no call.
  static void copy(void* to, const void* from, int64_t bytes) {
    auto* t = static_cast<char*>(to);
    auto* f = static_cast<const char*>(from);
    if (bytes & 8) std::memcpy(t, f, 8);
    if (bytes & 4) std::memcpy(t + (bytes & 8), f + (bytes & 8), 4);
    if (bytes & 2) std::memcpy(t + (bytes & 12), f + (bytes & 12), 2);
    if (bytes & 1) t[bytes & 14] = f[bytes & 14];
  }
};

}  // namespace tilewise::cpu::avx2
