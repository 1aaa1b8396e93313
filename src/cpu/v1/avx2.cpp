#include "cpu/simd/avx2.h"

#include "core/device.h"
#include "cpu/kernels.h"
#include "cpu/v1/kernel.h"

namespace tilewise::cpu::avx2 {
namespace {

bool runs_on(int32_t, Text& why_not) {
  if (!this_cpu().avx2) why_not.format("this CPU has no AVX2 with FMA and F16C");
  return this_cpu().avx2;
}

}  // namespace

const Kernel v1_forward = {"cpu.v1.avx2.forward",
                           Pass::forward,
                           Rank::rung,
                           TW_CPU,
                           runs_on,
                           v1::refuse<Simd>,
                           v1::size<Simd, v1::Forward>,
                           v1::launch<Simd, v1::Forward>};
const Kernel v1_backward = {"cpu.v1.avx2.backward",
                            Pass::backward,
                            Rank::rung,
                            TW_CPU,
                            runs_on,
                            v1::refuse<Simd>,
                            v1::size<Simd, v1::Backward>,
                            v1::launch<Simd, v1::Backward>};

}  // namespace tilewise::cpu::avx2
