#include "cpu/kernel_row.h"
#include "cpu/kernels.h"
#include "cpu/simd/sve.h"
#include "cpu/tiled/forward_call.h"

namespace tilewise::cpu::sve512 {

const Kernel tiled_forward = kernel_row<ForwardCall<Simd>>("cpu.tiled.sve512.forward", Isa::sve512);

}  // namespace tilewise::cpu::sve512
