#include "cpu/simd/neon.h"

#include "cpu/kernel_row.h"
#include "cpu/kernels.h"
#include "cpu/standard/backward.h"
#include "cpu/standard/forward.h"

namespace tilewise::cpu::neon {

const Kernel standard_forward = kernel_row<standard::Forward<Simd>>("cpu.standard.neon.forward", Isa::neon);
const Kernel standard_backward = kernel_row<standard::Backward<Simd>>("cpu.standard.neon.backward", Isa::neon);

}  // namespace tilewise::cpu::neon
