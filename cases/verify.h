// The engine of `tilewise verify`: random legal problems against the oracle.
#pragma once

#include <functional>
#include <map>

#include "cases/measure.h"

namespace tilewise::cases {

inline constexpr int64_t kMostDraws = 10;  // for each problem that is to run

struct VerifyOptions {
  const char* kernel =
      nullptr;          // parts of a name; null: what planning chooses. A pass without such a kernel is left out
  int64_t count = 200;  // accepted problems to run
  uint64_t seed = 1;
  int64_t first = 0;  // index to start at: (seed, index) replays a problem; first + kMostDraws * count <= 2^63 - 1
  int threads = 0;
  int32_t device_type = TW_CPU;
};

struct VerifyFailure {
  int64_t index;
  std::string kernel, name, what;
};

struct WorstRatio {
  double ratio = 0;  // error over what contract C8 allows
  int64_t index = -1;
  std::string name;
};

struct VerifyReport {
  int64_t drawn = 0, run = 0, refused = 0, failed = 0;
  std::map<std::string, int64_t> refusals;  // by rule
  std::map<std::string, WorstRatio> worst;  // by output
  std::vector<VerifyFailure> failures;      // the first few
};

// True if the table of the device has a kernel of that name for the pass.
bool has_kernel(const char* part, Pass pass, int32_t device_type);

// Draws problems until `count` have run or a kernel has refused nine in ten. `progress` is called after each.
VerifyReport verify(const VerifyOptions& options, const std::function<void(const VerifyReport&)>& progress);

}  // namespace tilewise::cases
