#include "cpu/kernel_row.h"
#include "cpu/kernels.h"
#include "cpu/simd/portable.h"
#include "cpu/tiled/backward_call.h"

namespace tilewise::cpu::portable {

const Kernel tiled_backward = kernel_row<BackwardCall<Simd>>("cpu.tiled.portable.backward", Isa::baseline);

}  // namespace tilewise::cpu::portable
