// GPUs compute powers of 2: exp(x) = 2^(x log2(e)), log(x) = log2(x) ln(2).
#pragma once

#include <numbers>

namespace tilewise::cuda {

inline constexpr float kLog2e = std::numbers::log2e_v<float>, kLn2 = std::numbers::ln2_v<float>;

}  // namespace tilewise::cuda
