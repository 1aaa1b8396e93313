#include "cpu/kernels.h"
#include "cpu/simd/avx2.h"
#include "cpu/tiled/backward_call.h"

namespace tilewise::cpu::avx2 {
namespace {

bool runs_on(int32_t, Text& why_not) {
  if (!this_cpu().avx2) why_not.format("this processor has no AVX2 with FMA and F16C");
  return this_cpu().avx2;
}

}  // namespace

const Kernel tiled_backward = {"cpu.tiled.avx2.backward", Pass::backward,      Rank::chosen,         TW_CPU, runs_on,
                               refuse_backward,           size_backward<Simd>, launch_backward<Simd>};

}  // namespace tilewise::cpu::avx2
