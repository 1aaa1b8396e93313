#include "cpu/kernel_row.h"
#include "cpu/kernels.h"
#include "cpu/simd/sve.h"
#include "cpu/tiled/backward_call.h"

namespace tilewise::cpu::sve128 {

const Kernel tiled_backward = kernel_row<BackwardCall<Simd>>("cpu.tiled.sve128.backward", Isa::sve128);

}  // namespace tilewise::cpu::sve128
