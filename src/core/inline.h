// TILEWISE_INLINE marks the small functions that every kernel's translation unit may use. On the host they are always
// inlined: a copy that was compiled for one instruction set must never be the one that the linker keeps for all. GPUs
// get them too, so that host and device share one set of rules.
#pragma once

#ifdef __CUDACC__
#define TILEWISE_INLINE __host__ __device__ __forceinline__
#else
#define TILEWISE_INLINE [[gnu::always_inline]] inline
#endif
