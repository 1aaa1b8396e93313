#include "cpu/kernels.h"

#include <array>

#include "core/backend.h"

namespace tilewise {
namespace {

// Best first, reference after them; rungs are never chosen, so their place does not matter.
// clang-format off
constexpr std::array kCpuTable = {
#ifdef TILEWISE_X86
    &cpu::avx512::tiled_forward, &cpu::avx512::tiled_backward,
    &cpu::avx2::tiled_forward, &cpu::avx2::tiled_backward,
#endif
#ifdef TILEWISE_ARM
    // SVE where it has more lanes. With as many, NEON: it multiplies by an element of a vector, where SVE has to load
    // each factor into a vector of its own.
    &cpu::sve512::tiled_forward, &cpu::sve512::tiled_backward,
    &cpu::sve256::tiled_forward, &cpu::sve256::tiled_backward,
    &cpu::neon::tiled_forward, &cpu::neon::tiled_backward,
    &cpu::sve128::tiled_forward, &cpu::sve128::tiled_backward,
#endif
    &cpu::portable::tiled_forward, &cpu::portable::tiled_backward,
    &cpu::reference_forward, &cpu::reference_backward,
    // Rungs: only when forced.
#ifdef TILEWISE_X86
    &cpu::avx512::standard_forward, &cpu::avx512::standard_backward,
    &cpu::avx512::v1_forward, &cpu::avx512::v1_backward,
    &cpu::avx2::standard_forward, &cpu::avx2::standard_backward,
    &cpu::avx2::v1_forward, &cpu::avx2::v1_backward,
#endif
#ifdef TILEWISE_ARM
    &cpu::neon::standard_forward, &cpu::neon::standard_backward,
    &cpu::neon::v1_forward, &cpu::neon::v1_backward,
#endif
    &cpu::portable::standard_forward, &cpu::portable::standard_backward,
    &cpu::portable::v1_forward, &cpu::portable::v1_backward,
};
// clang-format on

}  // namespace

// Those of CUDA are listed in cuda/kernels.cpp, which is another library.
std::span<const Kernel* const> kernels(int32_t device_type) {
  if (device_type == TW_CPU) return kCpuTable;
  const Backend* backend = cuda_backend();
  if (!backend) return {};
  return {backend->kernels, static_cast<size_t>(backend->kernel_count)};
}

}  // namespace tilewise
