#include "cpu/simd/avx2.h"

#include "core/device.h"
#include "cpu/kernels.h"
#include "cpu/standard/kernel.h"

namespace tilewise::cpu::avx2 {
namespace {

bool runs_on(int32_t, Text& why_not) {
  if (!this_cpu().avx2) why_not.format("this CPU has no AVX2 with FMA and F16C");
  return this_cpu().avx2;
}

}  // namespace

const Kernel standard_forward = {"cpu.standard.avx2.forward",
                                 Pass::forward,
                                 Rank::rung,
                                 TW_CPU,
                                 runs_on,
                                 standard::refuse<Simd>,
                                 standard::size<Simd, standard::Forward>,
                                 standard::launch<Simd, standard::Forward>};
const Kernel standard_backward = {"cpu.standard.avx2.backward",
                                  Pass::backward,
                                  Rank::rung,
                                  TW_CPU,
                                  runs_on,
                                  standard::refuse<Simd>,
                                  standard::size<Simd, standard::Backward>,
                                  standard::launch<Simd, standard::Backward>};

}  // namespace tilewise::cpu::avx2
