// Thin PTX layer for sm_80 and everything after it: one function per instruction, no policy. Sections are those of the
// PTX ISA 9.0.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "cuda/common/device.cuh"

namespace tilewise::cuda::ptx {

TILEWISE_DEVICE uint32_t smem_addr(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// A value that all lanes share, moved to where the compiler knows it: the uniform registers.
TILEWISE_DEVICE int uniform(int x) { return __reduce_or_sync(~0u, x); }
// Hides where a value comes from: what is derived from it is neither rearranged nor kept in registers from an earlier
// use.
template <class T>
TILEWISE_DEVICE const T* pin(const T* p) {
  asm volatile("" : "+l"(p));
  return p;
}

TILEWISE_DEVICE int pin(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
// Read anew, so that what follows from it need not stay in registers.
TILEWISE_DEVICE int block_index() {
  int x;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  return x;
}

TILEWISE_DEVICE int thread_index() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

// --- asynchronous copies of 4 to 16 bytes from global to shared memory ----------------------------
TILEWISE_DEVICE void cp_async_or_zero(uint32_t dst, const void* src, bool inside) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(inside ? 16 : 0)
               : "memory");
}
// The first `bytes` of 16, zeros behind them; with none, src is not looked at.
TILEWISE_DEVICE void cp_async_first(uint32_t dst, const void* src, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}
// The first `bytes` of 4, 8 or 16, likewise, by way of the L1 cache.
template <int Size>
TILEWISE_DEVICE void cp_async_few(uint32_t dst, const void* src, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(dst), "l"(src), "n"(Size), "r"(bytes) : "memory");
}
TILEWISE_DEVICE void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `Pending` of the thread's latest groups are under way.
template <int Pending>
TILEWISE_DEVICE void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}
TILEWISE_DEVICE void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// --- in a build for tests a warp comes late to some of its barriers, by the clock: what luck alone kept in order shows
TILEWISE_DEVICE void delay() {
#ifdef TILEWISE_DELAYS
  uint32_t clock;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(clock));
  const uint32_t x = (clock + threadIdx.x / 32 * 0x9E3779B9u) * 0x85EBCA6Bu;
  if (x >> 28 == 0) __nanosleep(x >> 16 & 2047);
#endif
}

// --- mbarrier: arrivals of threads, or of the copies that a thread has issued so far ------------------
struct Barrier {
  uint64_t state;
  TILEWISE_DEVICE void init(uint32_t arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(smem_addr(this)), "r"(arrivals) : "memory");
  }
  TILEWISE_DEVICE void arrive() {
    delay();
    asm volatile("{ .reg .b64 x; mbarrier.arrive.shared.b64 x, [%0]; }" ::"r"(smem_addr(this)) : "memory");
  }
  TILEWISE_DEVICE void arrive_when_copied() {
    delay();
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(smem_addr(this)) : "memory");
  }
  TILEWISE_DEVICE bool test(uint32_t phase) {
    uint32_t done;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                 : "=r"(done)
                 : "r"(smem_addr(this)), "r"(phase)
                 : "memory");
    return done;
  }
  TILEWISE_DEVICE void wait(uint32_t phase) {
    delay();
    while (!test(phase)) {
    }
  }
};

// --- barriers among some warps of a CTA --------------------------------------------------------
TILEWISE_DEVICE void named_sync(int id, int threads) {
  delay();
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
TILEWISE_DEVICE void named_arrive(int id, int threads) {
  delay();
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
TILEWISE_DEVICE bool named_or(int id, int threads, bool x) {
  delay();
  int any;
  asm volatile("{ .reg .pred p, q; setp.ne.b32 p, %3, 0; bar.red.or.pred q, %1, %2, p; selp.b32 %0, 1, 0, q; }"
               : "=r"(any)
               : "r"(id), "r"(threads), "r"(int(x))
               : "memory");
  return any;
}

// --- tensor cores --------------------------------------------------------------------------------
TILEWISE_DEVICE void ldmatrix(uint32_t (&r)[4], uint32_t addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(addr)
               : "memory");
}
TILEWISE_DEVICE void ldmatrix_trans(uint32_t (&r)[4], uint32_t addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(addr)
               : "memory");
}
// d (16 x 8, fp32) += a (16 x 16) * b (16 x 8)
template <class T>
TILEWISE_DEVICE void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// TF32 is fp32 whose lowest 13 bits are not looked at.
// d (16 x 8, fp32) += a (16 x 8, TF32) * b (8 x 8, TF32)
TILEWISE_DEVICE void mma_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

TILEWISE_DEVICE void store_shared(uint32_t addr, uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(addr), "r"(x) : "memory");
}
// Four floats from global memory, not kept in the L1 cache. In the order of the program: the code says how early.
TILEWISE_DEVICE float4 load_past_l1(const float4* p) {
  float4 x;
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(p));
  return x;
}
// Adds to four consecutive floats in global memory: one instruction from sm_90 on, four before.
TILEWISE_DEVICE void red_add(float* p, const float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(x[0]), "f"(x[1]), "f"(x[2]),
               "f"(x[3])
               : "memory");
#else
  for (int i = 0; i < 4; ++i)
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(p + i), "f"(x[i]) : "memory");
#endif
}

// --- order between thread blocks -------------------------------------------------------------------
// Section 8.8, "Release and Acquire Patterns": whoever loads a sum and then fences sees what was written before it was
// released.
TILEWISE_DEVICE int load_relaxed(const int* p) {
  int x;
  asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
  return x;
}
TILEWISE_DEVICE void fence_acquire() {  // before sm_90 there is the one for both directions only
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.acquire.gpu;" ::: "memory");
#else
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
#endif
}
TILEWISE_DEVICE void add_release(int* p, int x) {
  delay();
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}

// --- arithmetic ------------------------------------------------------------------------------------
TILEWISE_DEVICE float exp2(float x) {
  float y;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
TILEWISE_DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
template <class T>
TILEWISE_DEVICE uint32_t pack(float lo, float hi) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 v = __floats2half2_rn(lo, hi);
    return reinterpret_cast<const uint32_t&>(v);
  } else {
    const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    return reinterpret_cast<const uint32_t&>(v);
  }
}
}  // namespace tilewise::cuda::ptx
