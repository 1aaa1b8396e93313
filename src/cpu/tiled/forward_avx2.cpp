#include "cpu/kernels.h"
#include "cpu/runs_on.h"
#include "cpu/simd/avx2.h"
#include "cpu/tiled/forward_call.h"

namespace tilewise::cpu::avx2 {

const Kernel tiled_forward = {"cpu.tiled.avx2.forward",
                              Pass::forward,
                              Rank::chosen,
                              TW_CPU,
                              needs_avx2,
                              ForwardCall<Simd>::refuse,
                              ForwardCall<Simd>::size,
                              ForwardCall<Simd>::launch};

}  // namespace tilewise::cpu::avx2
