#include "cpu/simd/avx2.h"

#include "cpu/kernel_row.h"
#include "cpu/kernels.h"
#include "cpu/standard/backward.h"
#include "cpu/standard/forward.h"

namespace tilewise::cpu::avx2 {

const Kernel standard_forward = kernel_row<standard::Forward<Simd>>("cpu.standard.avx2.forward", Isa::avx2);
const Kernel standard_backward = kernel_row<standard::Backward<Simd>>("cpu.standard.avx2.backward", Isa::avx2);

}  // namespace tilewise::cpu::avx2
