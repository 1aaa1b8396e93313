#include "cpu/simd/portable.h"

#include "cpu/kernels.h"
#include "cpu/runs_on.h"
#include "cpu/v1/kernel.h"

namespace tilewise::cpu::portable {

const Kernel v1_forward = {"cpu.v1.portable.forward",
                           Pass::forward,
                           Rank::rung,
                           TW_CPU,
                           runs_anywhere,
                           v1::refuse<Simd>,
                           v1::size<Simd, v1::Forward>,
                           v1::launch<Simd, v1::Forward>};
const Kernel v1_backward = {"cpu.v1.portable.backward",
                            Pass::backward,
                            Rank::rung,
                            TW_CPU,
                            runs_anywhere,
                            v1::refuse<Simd>,
                            v1::size<Simd, v1::Backward>,
                            v1::launch<Simd, v1::Backward>};

}  // namespace tilewise::cpu::portable
