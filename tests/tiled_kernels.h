// The tiled kernels of every instruction set for which this build holds code.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/kernel.h"

namespace tilewise {

inline std::vector<const Kernel*> tiled_kernels(Pass pass) {
  std::vector<const Kernel*> found;
  for (const Kernel* kernel : kernels(TW_CPU))
    if (kernel->pass == pass && names_kernel("cpu.tiled", kernel->name)) found.push_back(kernel);
  return found;
}

// "avx2" of "cpu.tiled.avx2.forward".
inline std::string isa_of_tiled(const testing::TestParamInfo<const Kernel*>& info) {
  const std::string name = info.param->name + std::string("cpu.tiled.").size();
  return name.substr(0, name.find('.'));
}

}  // namespace tilewise
