#include "core/device.h"
#include "cpu/kernels.h"
#include "cpu/simd/avx2.h"
#include "cpu/tiled/forward_call.h"

namespace tilewise::cpu::avx2 {

static bool runs_on(int32_t, Text& why_not) {
  if (!this_cpu().avx2) why_not.format("this CPU has no AVX2 with FMA and F16C");
  return this_cpu().avx2;
}

const Kernel tiled_forward = {"cpu.tiled.avx2.forward",
                              Pass::forward,
                              Rank::chosen,
                              TW_CPU,
                              runs_on,
                              ForwardCall<Simd>::refuse,
                              ForwardCall<Simd>::size,
                              ForwardCall<Simd>::launch};

}  // namespace tilewise::cpu::avx2
