#include "cpu/kernels.h"
#include "cpu/runs_on.h"
#include "cpu/simd/avx2.h"
#include "cpu/tiled/backward_call.h"

namespace tilewise::cpu::avx2 {

const Kernel tiled_backward = {"cpu.tiled.avx2.backward", Pass::backward,      Rank::chosen,         TW_CPU, needs_avx2,
                               refuse_backward,           size_backward<Simd>, launch_backward<Simd>};

}  // namespace tilewise::cpu::avx2
