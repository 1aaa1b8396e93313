// One query and two keys: the weights are 1/4 and 3/4, the output is 3 and lse is ln 4.
#include <array>
#include <cmath>
#include <cstdio>

#include "tilewise/tilewise.h"

int main() {
  const std::array q = {1.0f};
  const std::array k = {0.0f, std::log(3.0f)}, v = {0.0f, 4.0f};
  float out = 0, lse = 0;

  tw_attention a;
  TW_INIT(a);
  a.device_type = TW_CPU;
  a.q = tw_tensor_of(q.data(), TW_F32, 1, 1, 1, 1);
  a.k = tw_tensor_of(k.data(), TW_F32, 1, 2, 1, 1);
  a.v = tw_tensor_of(v.data(), TW_F32, 1, 2, 1, 1);
  a.out = tw_tensor_of(&out, TW_F32, 1, 1, 1, 1);
  a.lse = tw_tensor_of(&lse, TW_F32, 1, 1, 1, 1);
  if (tw_version() != TW_VERSION || tw_attention_forward(&a, nullptr) != TW_OK) {
    std::fprintf(stderr, "%s\n", tw_last_error());
    return 1;
  }
  std::printf("out %.4f lse %.4f\n", out, lse);
  return std::abs(out - 3) < 1e-5f && std::abs(lse - std::log(4.0f)) < 1e-5f ? 0 : 1;
}
