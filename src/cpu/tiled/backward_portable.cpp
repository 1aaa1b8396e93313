#include "cpu/kernels.h"
#include "cpu/runs_on.h"
#include "cpu/simd/portable.h"
#include "cpu/tiled/backward_call.h"

namespace tilewise::cpu::portable {

const Kernel tiled_backward = {
    "cpu.tiled.portable.backward", Pass::backward,       Rank::chosen, TW_CPU, runs_anywhere, refuse_backward,
    size_backward<Simd>,           launch_backward<Simd>};

}  // namespace tilewise::cpu::portable
