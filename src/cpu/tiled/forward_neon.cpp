#include "cpu/kernel_row.h"
#include "cpu/kernels.h"
#include "cpu/simd/neon.h"
#include "cpu/tiled/forward_call.h"

namespace tilewise::cpu::neon {

const Kernel tiled_forward = kernel_row<ForwardCall<Simd>>("cpu.tiled.neon.forward", Isa::neon);

}  // namespace tilewise::cpu::neon
