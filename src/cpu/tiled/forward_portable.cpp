#include "cpu/kernel_row.h"
#include "cpu/kernels.h"
#include "cpu/simd/portable.h"
#include "cpu/tiled/forward_call.h"

namespace tilewise::cpu::portable {

const Kernel tiled_forward = kernel_row<ForwardCall<Simd>>("cpu.tiled.portable.forward", Isa::baseline);

}  // namespace tilewise::cpu::portable
