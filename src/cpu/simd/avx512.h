// AVX-512 F, BW, DQ and VL with FMA and F16C: sixteen lanes, mask registers, 32 vectors. Specified in avx2.h.
#pragma once

// GCC 12 finds fault with its own _mm512_undefined_ps().
#ifndef __clang__
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#ifndef __clang__
#pragma GCC diagnostic pop
#endif

#include "cpu/common/element.h"

namespace tilewise::cpu::avx512 {

struct Simd {
  using Vec = __m512;
  using Mask = __mmask16;
  static constexpr int kLanes = 16;
  static constexpr int kTileRows = 8, kTileCols = 32;    // product(): 16 sums, 10 loads for 16 FMAs; 32 = one panel
  static constexpr int kStripRows = 8, kStripCols = 32;  // strip_product(): the same

  static Vec set(float x) { return _mm512_set1_ps(x); }
  static Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
  static Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
  static Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
  static Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Vec fms(Vec a, Vec b, Vec c) { return _mm512_fmsub_ps(a, b, c); }
  static Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
  static Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }

  static Mask none() { return 0; }
  static Mask equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
  static Mask above(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
  static Mask below(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static Mask not_below_equal(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ); }
  static Mask is_nan(Vec a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
  static Mask both(Mask a, Mask b) { return a & b; }
  static Mask either(Mask a, Mask b) { return a | b; }
  static Mask without(Mask a, Mask b) { return a & static_cast<Mask>(~b); }
  static Vec keep_if(Mask mask, Vec a) { return _mm512_maskz_mov_ps(mask, a); }
  static Vec keep_unless(Mask mask, Vec a) { return _mm512_maskz_mov_ps(static_cast<Mask>(~mask), a); }
  static Vec select(Mask mask, Vec yes, Vec no) { return _mm512_mask_blend_ps(mask, no, yes); }
  static bool any(Mask mask) { return mask != 0; }

  static Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static Vec load(const Half* p) { return _mm512_cvtph_ps(load_16(p)); }
  static Vec load(const Bfloat16* p) { return widen(load_16(p)); }
  static Vec load(const Boolean* p) { return widen_bytes(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  static void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
  static void store(Half* p, Vec x) { store_16(p, narrow_half(x)); }
  static void store(Bfloat16* p, Vec x) { store_16(p, narrow(x)); }

  static Vec load_first(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static Vec load_first(const Half* p, int64_t n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p)); }
  static Vec load_first(const Bfloat16* p, int64_t n) { return widen(_mm256_maskz_loadu_epi16(first(n), p)); }
  static Vec load_first(const Boolean* p, int64_t n) { return widen_bytes(_mm_maskz_loadu_epi8(first(n), p)); }
  static void store_first(float* p, Vec x, int64_t n) { _mm512_mask_storeu_ps(p, first(n), x); }
  static void store_first(Half* p, Vec x, int64_t n) { _mm256_mask_storeu_epi16(p, first(n), narrow_half(x)); }
  static void store_first(Bfloat16* p, Vec x, int64_t n) { _mm256_mask_storeu_epi16(p, first(n), narrow(x)); }

  static Vec nearest(Vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static Vec to_integer(Vec whole) { return _mm512_castsi512_ps(_mm512_cvtps_epi32(whole)); }

  static Vec scale_exponent(Vec p, Vec n) {
    const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(n), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), exponent));
  }

  // By squares of 1, 2, 4 and 8.
  static void transpose(Vec (&x)[16]) {
    Vec t[16];
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
      for (int j = 0; j < 2; ++j) {
        x[i + 2 * j] = _mm512_shuffle_ps(t[i + j], t[i + 2 + j], 0x44);
        x[i + 2 * j + 1] = _mm512_shuffle_ps(t[i + j], t[i + 2 + j], 0xee);
      }
    for (int i = 0; i < 16; i += 8)
      for (int j = 0; j < 4; ++j) {
        t[i + j] = _mm512_shuffle_f32x4(x[i + j], x[i + 4 + j], 0x88);
        t[i + 4 + j] = _mm512_shuffle_f32x4(x[i + j], x[i + 4 + j], 0xdd);
      }
    for (int j = 0; j < 8; ++j) {
      x[j] = _mm512_shuffle_f32x4(t[j], t[8 + j], 0x88);
      x[8 + j] = _mm512_shuffle_f32x4(t[j], t[8 + j], 0xdd);
    }
  }

  // Sums of row r are zmm<r> and zmm1<r>. Tiles of 48 columns are as fast, but leave more lanes empty where rows are
  // few.
  static void product(float* c, int64_t c_row, const float* init, int64_t init_row, const float* a, int64_t a_row,
                      int64_t a_step, const float* b, int64_t b_row, int64_t count) {
    const int64_t row = a_row * 4, row3 = a_row * 12, row5 = a_row * 20, row7 = a_row * 28, step = a_step * 4;
    const int64_t b_next = b_row * 4, c_next = c_row * 4, init_next = init_row * 4;
    asm volatile(
        ".irp r, 0, 1, 2, 3, 4, 5, 6, 7\n\t"
        "vpxord %%zmm\\r, %%zmm\\r, %%zmm\\r\n\t"
        "vpxord %%zmm1\\r, %%zmm1\\r, %%zmm1\\r\n\t"
        ".endr\n\t"
        ".p2align 5\n"
        "1:\n\t"
        ".rept 4\n\t"
        "vmovups (%[b]), %%zmm8\n\t    vbroadcastss (%[a]), %%zmm28\n\t"
        "vmovups 64(%[b]), %%zmm9\n\t  vbroadcastss (%[a], %[row]), %%zmm29\n\t"
        "add %[b_next], %[b]\n\t"
        "vfmadd231ps %%zmm8, %%zmm28, %%zmm0\n\t"
        "vfmadd231ps %%zmm9, %%zmm28, %%zmm10\n\t"
        "vbroadcastss (%[a], %[row], 2), %%zmm30\n\t"
        "vfmadd231ps %%zmm8, %%zmm29, %%zmm1\n\t"
        "vfmadd231ps %%zmm9, %%zmm29, %%zmm11\n\t"
        "vbroadcastss (%[a], %[row3]), %%zmm31\n\t"
        "vfmadd231ps %%zmm8, %%zmm30, %%zmm2\n\t"
        "vfmadd231ps %%zmm9, %%zmm30, %%zmm12\n\t"
        "vbroadcastss (%[a], %[row], 4), %%zmm28\n\t"
        "vfmadd231ps %%zmm8, %%zmm31, %%zmm3\n\t"
        "vfmadd231ps %%zmm9, %%zmm31, %%zmm13\n\t"
        "vbroadcastss (%[a], %[row5]), %%zmm29\n\t"
        "vfmadd231ps %%zmm8, %%zmm28, %%zmm4\n\t"
        "vfmadd231ps %%zmm9, %%zmm28, %%zmm14\n\t"
        "vbroadcastss (%[a], %[row3], 2), %%zmm30\n\t"
        "vfmadd231ps %%zmm8, %%zmm29, %%zmm5\n\t"
        "vfmadd231ps %%zmm9, %%zmm29, %%zmm15\n\t"
        "vbroadcastss (%[a], %[row7]), %%zmm31\n\t"
        "add %[step], %[a]\n\t"
        "vfmadd231ps %%zmm8, %%zmm30, %%zmm6\n\t"
        "vfmadd231ps %%zmm9, %%zmm30, %%zmm16\n\t"
        "vfmadd231ps %%zmm8, %%zmm31, %%zmm7\n\t"
        "vfmadd231ps %%zmm9, %%zmm31, %%zmm17\n\t"
        ".endr\n\t"
        "sub $4, %[count]\n\t"
        "jnz 1b\n\t"
        ".irp r, 0, 1, 2, 3, 4, 5, 6, 7\n\t"
        "vaddps (%[init]), %%zmm\\r, %%zmm\\r\n\t        vmovups %%zmm\\r, (%[c])\n\t"
        "vaddps 64(%[init]), %%zmm1\\r, %%zmm1\\r\n\t    vmovups %%zmm1\\r, 64(%[c])\n\t"
        "add %[init_next], %[init]\n\t                   add %[c_next], %[c]\n\t"
        ".endr\n\t"
        : [a] "+r"(a), [b] "+r"(b), [c] "+r"(c), [init] "+r"(init), [count] "+r"(count)
        : [row] "r"(row), [row3] "r"(row3), [row5] "r"(row5), [row7] "r"(row7), [step] "r"(step), [b_next] "r"(b_next),
          [c_next] "r"(c_next), [init_next] "r"(init_next)
        : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
          "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm28", "xmm29", "xmm30", "xmm31", "memory", "cc");
  }

  static void strip_product(float* c, int64_t c_row, const float* a, int64_t a_row, const float* b, int64_t b_row,
                            int64_t count) {
    product(c, c_row, c, c_row, a, a_row, 1, b, b_row, count);
  }

 private:
  static Mask first(int64_t n) { return static_cast<Mask>((1u << n) - 1); }

  static __m256i load_16(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void store_16(void* p, __m256i x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }

  static Vec widen_bytes(__m128i x) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(x)); }
  static Vec widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }

  static __m256i narrow_half(Vec x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
  static __m256i narrow(Vec x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i even = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __m512i kept = _mm512_mask_or_epi32(even, is_nan(x), bits, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
  }
};

}  // namespace tilewise::cpu::avx512
