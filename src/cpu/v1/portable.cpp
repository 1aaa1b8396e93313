#include "cpu/simd/portable.h"

#include "cpu/kernel_row.h"
#include "cpu/kernels.h"
#include "cpu/v1/backward.h"
#include "cpu/v1/forward.h"

namespace tilewise::cpu::portable {

const Kernel v1_forward = kernel_row<v1::Forward<Simd>>("cpu.v1.portable.forward", Isa::baseline);
const Kernel v1_backward = kernel_row<v1::Backward<Simd>>("cpu.v1.portable.backward", Isa::baseline);

}  // namespace tilewise::cpu::portable
