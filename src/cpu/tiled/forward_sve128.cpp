#include "cpu/kernel_row.h"
#include "cpu/kernels.h"
#include "cpu/simd/sve.h"
#include "cpu/tiled/forward_call.h"

namespace tilewise::cpu::sve128 {

const Kernel tiled_forward = kernel_row<ForwardCall<Simd>>("cpu.tiled.sve128.forward", Isa::sve128);

}  // namespace tilewise::cpu::sve128
