// NEON, which every 64-bit ARM processor has: four lanes, 32 vectors. Specified in avx2.h.
#pragma once

#include <arm_neon.h>

#include <cstring>

#include "cpu/common/element.h"

namespace tilewise::cpu::neon {

struct Simd {
  using Vec = float32x4_t;
  using Mask = uint32x4_t;  // all-ones lanes
  static constexpr int kLanes = 4;
  static constexpr int kTileRows = 4, kTileCols = 16;    // product(): 16 sums; with 24, GCC 12 spills two of them
  static constexpr int kStripRows = 4, kStripCols = 16;  // strip_product(): the same

  static Vec set(float x) { return vdupq_n_f32(x); }
  static Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
  static Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
  static Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
  static Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
  static Vec fms(Vec a, Vec b, Vec c) { return vfmaq_f32(vnegq_f32(c), a, b); }
  static Vec max(Vec a, Vec b) { return select(above(a, b), a, b); }  // the instruction gives NaN
  static Vec min(Vec a, Vec b) { return select(below(a, b), a, b); }

  static Mask none() { return vdupq_n_u32(0); }
  static Mask equal(Vec a, Vec b) { return vceqq_f32(a, b); }
  static Mask above(Vec a, Vec b) { return vcgtq_f32(a, b); }
  static Mask below(Vec a, Vec b) { return vcltq_f32(a, b); }
  static Mask not_below_equal(Vec a, Vec b) { return vmvnq_u32(vcleq_f32(a, b)); }
  static Mask is_nan(Vec a) { return vmvnq_u32(vceqq_f32(a, a)); }
  static Mask both(Mask a, Mask b) { return vandq_u32(a, b); }
  static Mask either(Mask a, Mask b) { return vorrq_u32(a, b); }
  static Mask without(Mask a, Mask b) { return vbicq_u32(a, b); }
  static Vec keep_if(Mask mask, Vec a) { return floats(vandq_u32(bits(a), mask)); }
  static Vec keep_unless(Mask mask, Vec a) { return floats(vbicq_u32(bits(a), mask)); }
  static Vec select(Mask mask, Vec yes, Vec no) { return vbslq_f32(mask, yes, no); }
  static bool any(Mask mask) { return vmaxvq_u32(mask) != 0; }

  static Vec load(const float* p) { return vld1q_f32(p); }
  static Vec load(const Half* p) { return widen_half(vld1_u16(&p->bits)); }
  static Vec load(const Bfloat16* p) { return widen(vld1_u16(&p->bits)); }
  static Vec load(const Boolean* p) { return load_first(p, kLanes); }
  static void store(float* p, Vec x) { vst1q_f32(p, x); }
  static void store(Half* p, Vec x) { vst1_u16(&p->bits, narrow_half(x)); }
  static void store(Bfloat16* p, Vec x) { vst1_u16(&p->bits, narrow(x)); }

  static Vec load_first(const float* p, int64_t n) {
    float elements[kLanes] = {};
    copy<4>(elements, p, n);
    return vld1q_f32(elements);
  }
  static Vec load_first(const Half* p, int64_t n) { return widen_half(load_first_16(p, n)); }
  static Vec load_first(const Bfloat16* p, int64_t n) { return widen(load_first_16(p, n)); }
  static Vec load_first(const Boolean* p, int64_t n) {
    uint8_t elements[8] = {};
    copy<1>(elements, p, n);
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vld1_u8(elements)))));
  }
  static void store_first(float* p, Vec x, int64_t n) {
    float elements[kLanes];
    vst1q_f32(elements, x);
    copy<4>(p, elements, n);
  }
  static void store_first(Half* p, Vec x, int64_t n) { store_first_16(p, narrow_half(x), n); }
  static void store_first(Bfloat16* p, Vec x, int64_t n) { store_first_16(p, narrow(x), n); }

  static Vec nearest(Vec x) { return vrndnq_f32(x); }
  static Vec to_integer(Vec whole) { return vreinterpretq_f32_s32(vcvtq_s32_f32(whole)); }

  static Vec scale_exponent(Vec p, Vec n) { return floats(vaddq_u32(bits(p), vshlq_n_u32(bits(n), 23))); }

  // Two rounds, as in sve.h.
  static void transpose(Vec (&x)[4]) {
    const Vec even[2] = {vzip1q_f32(x[0], x[2]), vzip2q_f32(x[0], x[2])};
    const Vec odd[2] = {vzip1q_f32(x[1], x[3]), vzip2q_f32(x[1], x[3])};
    for (int i = 0; i < 2; ++i) {
      x[2 * i] = vzip1q_f32(even[i], odd[i]);
      x[2 * i + 1] = vzip2q_f32(even[i], odd[i]);
    }
  }

  // The factor is one element of a vector: no broadcast, and 8 loads for 16 FMAs. The loops over r and v must be
  // unrolled for the sums to be registers.
  static void product(float* c, int64_t c_row, const float* init, int64_t init_row, const float* a, int64_t a_row,
                      int64_t a_step, const float* b, int64_t b_row, int64_t count) {
    constexpr int kVecs = kTileCols / kLanes;
    Vec sum[kTileRows][kVecs] = {};
    for (int64_t k = 0; k < count; ++k, a += a_step, b += b_row) {
      const Vec right[kVecs] = {load(b), load(b + kLanes), load(b + 2 * kLanes), load(b + 3 * kLanes)};
#pragma GCC unroll 4
      for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) sum[r][v] = vfmaq_n_f32(sum[r][v], right[v], a[r * a_row]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v)
        store(c + r * c_row + v * kLanes, add(load(init + r * init_row + v * kLanes), sum[r][v]));
    }
  }

  static void strip_product(float* c, int64_t c_row, const float* a, int64_t a_row, const float* b, int64_t b_row,
                            int64_t count) {
    product(c, c_row, c, c_row, a, a_row, 1, b, b_row, count);
  }

 private:
  static uint32x4_t bits(Vec x) { return vreinterpretq_u32_f32(x); }
  static Vec floats(uint32x4_t x) { return vreinterpretq_f32_u32(x); }

  static uint16x4_t load_first_16(const void* p, int64_t n) {
    uint16_t elements[kLanes] = {};
    copy<2>(elements, p, n);
    return vld1_u16(elements);
  }
  static void store_first_16(void* p, uint16x4_t x, int64_t n) {
    uint16_t elements[kLanes];
    vst1_u16(elements, x);
    copy<2>(p, elements, n);
  }

  // n <= 4 elements of kSize bytes, by the bits of their number: no loop, no call.
  template <int kSize>
  static void copy(void* to, const void* from, int64_t n) {
    auto* t = static_cast<char*>(to);
    auto* f = static_cast<const char*>(from);
    if (n & 4) std::memcpy(t, f, 4 * kSize);
    if (n & 2) std::memcpy(t, f, 2 * kSize);
    if (n & 1) std::memcpy(t + (n & 2) * kSize, f + (n & 2) * kSize, kSize);
  }

  static Vec widen_half(uint16x4_t x) { return vcvt_f32_f16(vreinterpret_f16_u16(x)); }
  static Vec widen(uint16x4_t x) { return floats(vshll_n_u16(x, 16)); }

  static uint16x4_t narrow_half(Vec x) { return vreinterpret_u16_f16(vcvt_f16_f32(x)); }
  static uint16x4_t narrow(Vec x) {
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits(x), 16), vdupq_n_u32(1));
    const uint32x4_t even = vaddq_u32(bits(x), vaddq_u32(odd, vdupq_n_u32(0x7fff)));
    const uint32x4_t quiet = vorrq_u32(bits(x), vdupq_n_u32(0x400000));
    return vshrn_n_u32(vbslq_u32(is_nan(x), quiet, even), 16);
  }
};

}  // namespace tilewise::cpu::neon
