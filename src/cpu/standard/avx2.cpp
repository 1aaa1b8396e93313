#include "cpu/simd/avx2.h"

#include "cpu/kernels.h"
#include "cpu/runs_on.h"
#include "cpu/standard/kernel.h"

namespace tilewise::cpu::avx2 {

const Kernel standard_forward = {"cpu.standard.avx2.forward",
                                 Pass::forward,
                                 Rank::rung,
                                 TW_CPU,
                                 needs_avx2,
                                 standard::refuse<Simd>,
                                 standard::size<Simd, standard::Forward>,
                                 standard::launch<Simd, standard::Forward>};
const Kernel standard_backward = {"cpu.standard.avx2.backward",
                                  Pass::backward,
                                  Rank::rung,
                                  TW_CPU,
                                  needs_avx2,
                                  standard::refuse<Simd>,
                                  standard::size<Simd, standard::Backward>,
                                  standard::launch<Simd, standard::Backward>};

}  // namespace tilewise::cpu::avx2
