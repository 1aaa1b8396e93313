#include "cpu/simd/avx2.h"

#include "cpu/kernel_row.h"
#include "cpu/kernels.h"
#include "cpu/v1/backward.h"
#include "cpu/v1/forward.h"

namespace tilewise::cpu::avx2 {

const Kernel v1_forward = kernel_row<v1::Forward<Simd>>("cpu.v1.avx2.forward", Isa::avx2);
const Kernel v1_backward = kernel_row<v1::Backward<Simd>>("cpu.v1.avx2.backward", Isa::avx2);

}  // namespace tilewise::cpu::avx2
