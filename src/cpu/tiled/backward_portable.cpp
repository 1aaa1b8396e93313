#include "cpu/kernels.h"
#include "cpu/simd/portable.h"
#include "cpu/tiled/backward_call.h"

namespace tilewise::cpu::portable {
namespace {

bool runs_on(int32_t, Text&) { return true; }

}  // namespace

const Kernel tiled_backward = {
    "cpu.tiled.portable.backward", Pass::backward,       Rank::chosen, TW_CPU, runs_on, refuse_backward,
    size_backward<Simd>,           launch_backward<Simd>};

}  // namespace tilewise::cpu::portable
