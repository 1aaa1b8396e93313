#include "cpu/kernel_row.h"
#include "cpu/kernels.h"
#include "cpu/simd/sve.h"
#include "cpu/tiled/backward_call.h"

namespace tilewise::cpu::sve512 {

const Kernel tiled_backward = kernel_row<BackwardCall<Simd>>("cpu.tiled.sve512.backward", Isa::sve512);

}  // namespace tilewise::cpu::sve512
