#include "cpu/simd/portable.h"

#include "cpu/kernel_row.h"
#include "cpu/kernels.h"
#include "cpu/standard/backward.h"
#include "cpu/standard/forward.h"

namespace tilewise::cpu::portable {

const Kernel standard_forward = kernel_row<standard::Forward<Simd>>("cpu.standard.portable.forward", Isa::baseline);
const Kernel standard_backward = kernel_row<standard::Backward<Simd>>("cpu.standard.portable.backward", Isa::baseline);

}  // namespace tilewise::cpu::portable
