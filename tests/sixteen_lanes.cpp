// The table of kernels of a test program: the tiled ones for sixteen lanes take the place of those for real machines. A
// program that defines kernels(TW_CPU) itself leaves the library's out.
#include "sixteen_lanes.h"

#include <array>

#include "cpu/kernel_row.h"
#include "cpu/kernels.h"
#include "cpu/tiled/backward_call.h"
#include "cpu/tiled/forward_call.h"

namespace tilewise {
namespace {

using Simd = cpu::portable::SixteenLanes;

constexpr Kernel kForward = cpu::kernel_row<cpu::ForwardCall<Simd>>("cpu.tiled.sixteen_lanes.forward", Isa::baseline);
constexpr Kernel kBackward =
    cpu::kernel_row<cpu::BackwardCall<Simd>>("cpu.tiled.sixteen_lanes.backward", Isa::baseline);

constexpr std::array kTable = {&kForward, &kBackward, &cpu::reference_forward, &cpu::reference_backward};

}  // namespace

std::span<const Kernel* const> kernels(int32_t) { return kTable; }

}  // namespace tilewise
