#include "cpu/kernels.h"
#include "cpu/runs_on.h"
#include "cpu/simd/portable.h"
#include "cpu/tiled/forward_call.h"

namespace tilewise::cpu::portable {

const Kernel tiled_forward = {"cpu.tiled.portable.forward",
                              Pass::forward,
                              Rank::chosen,
                              TW_CPU,
                              runs_anywhere,
                              ForwardCall<Simd>::refuse,
                              ForwardCall<Simd>::size,
                              ForwardCall<Simd>::launch};

}  // namespace tilewise::cpu::portable
