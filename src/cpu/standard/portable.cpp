#include "cpu/simd/portable.h"

#include "cpu/kernels.h"
#include "cpu/runs_on.h"
#include "cpu/standard/kernel.h"

namespace tilewise::cpu::portable {

const Kernel standard_forward = {"cpu.standard.portable.forward",
                                 Pass::forward,
                                 Rank::rung,
                                 TW_CPU,
                                 runs_anywhere,
                                 standard::refuse<Simd>,
                                 standard::size<Simd, standard::Forward>,
                                 standard::launch<Simd, standard::Forward>};
const Kernel standard_backward = {"cpu.standard.portable.backward",
                                  Pass::backward,
                                  Rank::rung,
                                  TW_CPU,
                                  runs_anywhere,
                                  standard::refuse<Simd>,
                                  standard::size<Simd, standard::Backward>,
                                  standard::launch<Simd, standard::Backward>};

}  // namespace tilewise::cpu::portable
