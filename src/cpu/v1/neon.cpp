#include "cpu/simd/neon.h"

#include "cpu/kernel_row.h"
#include "cpu/kernels.h"
#include "cpu/v1/backward.h"
#include "cpu/v1/forward.h"

namespace tilewise::cpu::neon {

const Kernel v1_forward = kernel_row<v1::Forward<Simd>>("cpu.v1.neon.forward", Isa::neon);
const Kernel v1_backward = kernel_row<v1::Backward<Simd>>("cpu.v1.neon.backward", Isa::neon);

}  // namespace tilewise::cpu::neon
