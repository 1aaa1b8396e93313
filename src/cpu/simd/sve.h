// SVE with vectors of a length fixed at compile time: 4, 8 or 16 lanes, 32 vectors, predicates as masks. Specified
// in avx2.h. Vectors of unknown length cannot lie in arrays, which kernels need, so each length is a build of its own.
#pragma once

#include <arm_sve.h>

#include "cpu/common/element.h"

#if __ARM_FEATURE_SVE_BITS == 128
namespace tilewise::cpu::sve128 {
#elif __ARM_FEATURE_SVE_BITS == 256
namespace tilewise::cpu::sve256 {
#elif __ARM_FEATURE_SVE_BITS == 512
namespace tilewise::cpu::sve512 {
#else
#error "sve.h needs -msve-vector-bits=128, 256 or 512"
#endif

struct Simd {
  using Vec = svfloat32_t __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));
  using Mask = svbool_t __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));
  static constexpr int kLanes = __ARM_FEATURE_SVE_BITS / 32;
  // product(): 24 sums, or they would not hide the latency of two units; a tile's rows divide a vector's lanes.
  static constexpr int kTileRows = kLanes == 4 ? 4 : 8, kTileCols = 24 / kTileRows * kLanes;
  static constexpr int kStripRows = kTileRows, kStripCols = 16 / kTileRows * kLanes;  // strip_product(): 16 sums

  static Vec set(float x) { return svdup_f32(x); }
  static Vec add(Vec a, Vec b) { return svadd_x(all(), a, b); }
  static Vec sub(Vec a, Vec b) { return svsub_x(all(), a, b); }
  static Vec mul(Vec a, Vec b) { return svmul_x(all(), a, b); }
  static Vec div(Vec a, Vec b) { return svdiv_x(all(), a, b); }
  static Vec fma(Vec a, Vec b, Vec c) { return svmla_x(all(), c, a, b); }
  static Vec fms(Vec a, Vec b, Vec c) { return svnmls_x(all(), c, a, b); }
  static Vec max(Vec a, Vec b) { return select(above(a, b), a, b); }  // the instruction gives NaN
  static Vec min(Vec a, Vec b) { return select(below(a, b), a, b); }

  static Mask none() { return svpfalse(); }
  static Mask equal(Vec a, Vec b) { return svcmpeq(all(), a, b); }
  static Mask above(Vec a, Vec b) { return svcmpgt(all(), a, b); }
  static Mask below(Vec a, Vec b) { return svcmplt(all(), a, b); }
  static Mask not_below_equal(Vec a, Vec b) { return svnot_z(all(), svcmple(all(), a, b)); }
  static Mask is_nan(Vec a) { return svcmpuo(all(), a, a); }
  static Mask both(Mask a, Mask b) { return svand_z(all(), a, b); }
  static Mask either(Mask a, Mask b) { return svorr_z(all(), a, b); }
  static Mask without(Mask a, Mask b) { return svbic_z(all(), a, b); }
  static Vec keep_if(Mask mask, Vec a) { return svsel(mask, a, set(0)); }
  static Vec keep_unless(Mask mask, Vec a) { return svsel(mask, set(0), a); }
  static Vec select(Mask mask, Vec yes, Vec no) { return svsel(mask, yes, no); }
  static bool any(Mask mask) { return svptest_any(all(), mask); }

  static Vec load(const float* p) { return svld1(all(), p); }
  static Vec load(const Half* p) { return load_if(all(), p); }
  static Vec load(const Bfloat16* p) { return load_if(all(), p); }
  static Vec load(const Boolean* p) { return load_if(all(), p); }
  static void store(float* p, Vec x) { svst1(all(), p, x); }
  static void store(Half* p, Vec x) { store_if(all(), p, x); }
  static void store(Bfloat16* p, Vec x) { store_if(all(), p, x); }

  static Vec load_first(const float* p, int64_t n) { return svld1(first(n), p); }
  static Vec load_first(const Half* p, int64_t n) { return load_if(first(n), p); }
  static Vec load_first(const Bfloat16* p, int64_t n) { return load_if(first(n), p); }
  static Vec load_first(const Boolean* p, int64_t n) { return load_if(first(n), p); }
  static void store_first(float* p, Vec x, int64_t n) { svst1(first(n), p, x); }
  static void store_first(Half* p, Vec x, int64_t n) { store_if(first(n), p, x); }
  static void store_first(Bfloat16* p, Vec x, int64_t n) { store_if(first(n), p, x); }

  static Vec nearest(Vec x) { return svrintn_x(all(), x); }
  static Vec to_integer(Vec whole) { return svreinterpret_f32(svcvt_s32_x(all(), whole)); }

  static Vec scale_exponent(Vec p, Vec n) {
    return svreinterpret_f32(svadd_x(all(), svreinterpret_u32(p), svlsl_x(all(), svreinterpret_u32(n), 23)));
  }

  // Each round moves one bit of the lane's number into the row's and one back.
  static void transpose(Vec (&x)[kLanes]) {
    for (int round = 1; round < kLanes; round *= 2) {
      Vec y[kLanes];
      for (int i = 0; i < kLanes / 2; ++i) {
        y[2 * i] = svzip1(x[i], x[i + kLanes / 2]);
        y[2 * i + 1] = svzip2(x[i], x[i + kLanes / 2]);
      }
      for (int i = 0; i < kLanes; ++i) x[i] = y[i];
    }
  }

  static void product(float* c, int64_t c_row, const float* init, int64_t init_row, const float* a, int64_t a_row,
                      int64_t a_step, const float* b, int64_t b_row, int64_t count) {
    tile<kTileCols / kLanes>(c, c_row, init, init_row, a, a_row, a_step, b, b_row, count);
  }

  static void strip_product(float* c, int64_t c_row, const float* a, int64_t a_row, const float* b, int64_t b_row,
                            int64_t count) {
    tile<kStripCols / kLanes>(c, c_row, c, c_row, a, a_row, 1, b, b_row, count);
  }

 private:
  static svbool_t all() { return svptrue_b32(); }
  static svbool_t first(int64_t n) { return svwhilelt_b32(int64_t{0}, n); }

  // product() of kVecs vectors a row. The loops over r and v must be unrolled for the sums to be registers.
  template <int kVecs>
  static void tile(float* c, int64_t c_row, const float* init, int64_t init_row, const float* a, int64_t a_row,
                   int64_t a_step, const float* b, int64_t b_row, int64_t count) {
    Vec sum[kTileRows][kVecs];
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) sum[r][v] = set(0);
    }
    for (int64_t k = 0; k < count; ++k, a += a_step, b += b_row) {
      Vec right[kVecs];
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) right[v] = load(b + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kTileRows; ++r) {
        const Vec factor = set(a[r * a_row]);
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) sum[r][v] = fma(factor, right[v], sum[r][v]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v)
        store(c + r * c_row + v * kLanes, add(load(init + r * init_row + v * kLanes), sum[r][v]));
    }
  }

  // A 16-bit element in memory is a lane of 32 bits in a register.
  static Vec load_if(svbool_t lanes, const Half* p) {
    return svcvt_f32_x(all(), svreinterpret_f16(svld1uh_u32(lanes, &p->bits)));
  }
  static Vec load_if(svbool_t lanes, const Bfloat16* p) {
    return svreinterpret_f32(svlsl_x(all(), svld1uh_u32(lanes, &p->bits), 16));
  }
  static Vec load_if(svbool_t lanes, const Boolean* p) { return svcvt_f32_x(all(), svld1ub_u32(lanes, &p->byte)); }

  static void store_if(svbool_t lanes, Half* p, Vec x) {
    svst1h(lanes, &p->bits, svreinterpret_u32(svcvt_f16_x(all(), x)));
  }
  static void store_if(svbool_t lanes, Bfloat16* p, Vec x) {
    const svuint32_t bits = svreinterpret_u32(x);
    const svuint32_t odd = svand_x(all(), svlsr_x(all(), bits, 16), 1);
    const svuint32_t even = svadd_x(all(), bits, svadd_x(all(), odd, 0x7fff));
    const svuint32_t kept = svsel(svbool_t(is_nan(x)), svorr_x(all(), bits, 0x400000), even);
    svst1h(lanes, &p->bits, svlsr_x(all(), kept, 16));
  }
};

}  // namespace of this length
