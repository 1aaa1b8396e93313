#include "cpu/kernel_row.h"
#include "cpu/kernels.h"
#include "cpu/simd/sve.h"
#include "cpu/tiled/backward_call.h"

namespace tilewise::cpu::sve256 {

const Kernel tiled_backward = kernel_row<BackwardCall<Simd>>("cpu.tiled.sve256.backward", Isa::sve256);

}  // namespace tilewise::cpu::sve256
