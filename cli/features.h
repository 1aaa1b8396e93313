// What kernels serve, learnt by asking them.
#pragma once

#include <string>

#include "core/kernel.h"

namespace tilewise::cli {

// Names of the features of the C interface that the kernel refuses, with commas between.
std::string refused_features(const Kernel& kernel);

}  // namespace tilewise::cli
