#include "cpu/kernel_row.h"
#include "cpu/kernels.h"
#include "cpu/simd/avx512.h"
#include "cpu/tiled/forward_call.h"

namespace tilewise::cpu::avx512 {

const Kernel tiled_forward = kernel_row<ForwardCall<Simd>>("cpu.tiled.avx512.forward", Isa::avx512);

}  // namespace tilewise::cpu::avx512
