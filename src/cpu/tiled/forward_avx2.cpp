#include "cpu/kernel_row.h"
#include "cpu/kernels.h"
#include "cpu/simd/avx2.h"
#include "cpu/tiled/forward_call.h"

namespace tilewise::cpu::avx2 {

const Kernel tiled_forward = kernel_row<ForwardCall<Simd>>("cpu.tiled.avx2.forward", Isa::avx2);

}  // namespace tilewise::cpu::avx2
