// Three sequences of different lengths in one call: their tokens lie one after the other, offsets tell them apart.
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <random>
#include <span>
#include <tilewise/tilewise.hpp>
#include <vector>

namespace {

constexpr int H = 4, D = 32, kTotal = 64;
constexpr std::array<std::int32_t, 4> kOffsets = {0, 7, 44, kTotal};

std::vector<float> random_values(std::size_t count) {
  static std::mt19937 generator(1);
  std::uniform_real_distribution<float> from_minus_one_to_one(-1, 1);
  std::vector<float> values(count);
  for (float& value : values) value = from_minus_one_to_one(generator);
  return values;
}

// (1,tokens,H,D) from token `first` on.
tilewise::TensorView tokens_of(std::vector<float>& memory, int first, int tokens) {
  return {std::span(memory).subspan(static_cast<std::size_t>(first) * H * D), 1, tokens, H, D};
}

int compare() {
  std::vector<float> q = random_values(kTotal * H * D), k = random_values(q.size()), v = random_values(q.size());
  std::vector<float> packed(q.size()), alone(q.size());

  tilewise::forward({.q = tokens_of(q, 0, kTotal),
                     .k = tokens_of(k, 0, kTotal),
                     .v = tokens_of(v, 0, kTotal),
                     .out = tokens_of(packed, 0, kTotal),
                     .cu_seqlens_q = {kOffsets, kOffsets.size()},
                     .cu_seqlens_k = {kOffsets, kOffsets.size()},
                     .causal = true})
      .or_throw();

  for (std::size_t i = 0; i + 1 < kOffsets.size(); ++i) {
    const int first = kOffsets[i], tokens = kOffsets[i + 1] - first;
    tilewise::forward({.q = tokens_of(q, first, tokens),
                       .k = tokens_of(k, first, tokens),
                       .v = tokens_of(v, first, tokens),
                       .out = tokens_of(alone, first, tokens),
                       .causal = true})
        .or_throw();
  }

  float difference = 0;
  for (std::size_t i = 0; i < packed.size(); ++i) difference = std::fmax(difference, std::abs(packed[i] - alone[i]));
  std::printf("packed against one by one: largest difference %g\n", double{difference});
  return difference < 1e-5f ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return compare();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
