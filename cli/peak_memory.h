// How much the resident memory of this process grows while something runs.
#pragma once

#include <cstdint>
#include <optional>

namespace tilewise::cli {

class PeakMemory {
 public:
  PeakMemory();
  // Highest since construction, less what there was then; nothing where the system does not tell.
  std::optional<int64_t> growth() const;

 private:
  std::optional<int64_t> start_;
};

}  // namespace tilewise::cli
