// What the demo's numbers say, in plain words.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace tilewise::cli {

struct DemoAlgorithm {
  const char* title;
  const char* kernel;  // parts of its name
};
enum DemoPlace : size_t { kStandard, kV1, kTiled, kDemoAlgorithms };
inline constexpr std::array<DemoAlgorithm, kDemoAlgorithms> kDemoAlgorithm = {
    {{"standard", "standard"}, {"FlashAttention-1", "v1"}, {"tiled", "tiled"}}};

struct DemoLine {
  double ms = 0, error = 0;
  int64_t workspace = 0, moved = 0;
};

// One length: a line for each algorithm; none where its memory did not fit.
using DemoLines = std::array<std::optional<DemoLine>, kDemoAlgorithms>;

struct DemoResults {
  std::map<int64_t, DemoLines> forward;  // by tokens
  std::map<int64_t, DemoLines> backward;
};

// Contract C8 for fp32: no further from fp64 than twice standard attention, and 1e-6 of the largest value.
bool within_contract(const DemoLines& lines);

std::string demo_summary(const DemoResults& results);

}  // namespace tilewise::cli
