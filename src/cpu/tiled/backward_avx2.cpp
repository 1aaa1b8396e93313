#include "cpu/kernel_row.h"
#include "cpu/kernels.h"
#include "cpu/simd/avx2.h"
#include "cpu/tiled/backward_call.h"

namespace tilewise::cpu::avx2 {

const Kernel tiled_backward = kernel_row<BackwardCall<Simd>>("cpu.tiled.avx2.backward", Isa::avx2);

}  // namespace tilewise::cpu::avx2
