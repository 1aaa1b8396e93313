#include "cpu/kernels.h"
#include "cpu/simd/portable.h"
#include "cpu/tiled/forward_call.h"

namespace tilewise::cpu::portable {

static bool runs_on(int32_t, Text&) { return true; }

const Kernel tiled_forward = {"cpu.tiled.portable.forward",
                              Pass::forward,
                              Rank::chosen,
                              TW_CPU,
                              runs_on,
                              ForwardCall<Simd>::refuse,
                              ForwardCall<Simd>::size,
                              ForwardCall<Simd>::launch};

}  // namespace tilewise::cpu::portable
