#include "cpu/kernel_row.h"
#include "cpu/kernels.h"
#include "cpu/simd/avx512.h"
#include "cpu/tiled/backward_call.h"

namespace tilewise::cpu::avx512 {

const Kernel tiled_backward = kernel_row<BackwardCall<Simd>>("cpu.tiled.avx512.backward", Isa::avx512);

}  // namespace tilewise::cpu::avx512
