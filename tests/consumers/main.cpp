// One query and two keys: the weights are 1/4 and 3/4, the output is 3 and lse is ln 4.
#include <array>
#include <cmath>
#include <cstdio>

#include "tilewise/tilewise.hpp"

int main() {
  const std::array q = {1.0f};
  const std::array k = {0.0f, std::log(3.0f)}, v = {0.0f, 4.0f};
  std::array out = {0.0f}, lse = {0.0f};
  tilewise::forward({.q = {q, 1, 1, 1, 1},
                     .k = {k, 1, 2, 1, 1},
                     .v = {v, 1, 2, 1, 1},
                     .out = {out, 1, 1, 1, 1},
                     .lse = {lse, 1, 1, 1}})
      .or_throw();
  std::printf("out %.4f lse %.4f\n", out[0], lse[0]);
  return std::abs(out[0] - 3) < 1e-5f && std::abs(lse[0] - std::log(4.0f)) < 1e-5f ? 0 : 1;
}
