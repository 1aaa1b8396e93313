#include "cpu/simd/avx512.h"

#include "cpu/kernel_row.h"
#include "cpu/kernels.h"
#include "cpu/v1/backward.h"
#include "cpu/v1/forward.h"

namespace tilewise::cpu::avx512 {

const Kernel v1_forward = kernel_row<v1::Forward<Simd>>("cpu.v1.avx512.forward", Isa::avx512);
const Kernel v1_backward = kernel_row<v1::Backward<Simd>>("cpu.v1.avx512.backward", Isa::avx512);

}  // namespace tilewise::cpu::avx512
