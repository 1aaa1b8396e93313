#include "cpu/simd/avx512.h"

#include "cpu/kernel_row.h"
#include "cpu/kernels.h"
#include "cpu/standard/backward.h"
#include "cpu/standard/forward.h"

namespace tilewise::cpu::avx512 {

const Kernel standard_forward = kernel_row<standard::Forward<Simd>>("cpu.standard.avx512.forward", Isa::avx512);
const Kernel standard_backward = kernel_row<standard::Backward<Simd>>("cpu.standard.avx512.backward", Isa::avx512);

}  // namespace tilewise::cpu::avx512
