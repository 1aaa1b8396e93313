#include "cpu/kernel_row.h"
#include "cpu/kernels.h"
#include "cpu/simd/neon.h"
#include "cpu/tiled/backward_call.h"

namespace tilewise::cpu::neon {

const Kernel tiled_backward = kernel_row<BackwardCall<Simd>>("cpu.tiled.neon.backward", Isa::neon);

}  // namespace tilewise::cpu::neon
