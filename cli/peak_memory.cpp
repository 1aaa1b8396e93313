#include "cli/peak_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace tilewise::cli {
namespace {

std::optional<int64_t> status_bytes(const std::string& wanted) {
  std::ifstream file("/proc/self/status");
  for (std::string key, rest; file >> key; std::getline(file, rest)) {
    int64_t kib = 0;
    if (key == wanted && file >> kib) return kib * 1024;
  }
  return {};
}

bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  return static_cast<bool>(file << 5 << std::flush);  // 5: the peak becomes what is resident now
}

}  // namespace

PeakMemory::PeakMemory() {
  if (reset_peak()) start_ = status_bytes("VmRSS:");
}

std::optional<int64_t> PeakMemory::growth() const {
  const std::optional<int64_t> peak = status_bytes("VmHWM:");
  if (!start_ || !peak) return {};
  return std::max<int64_t>(0, *peak - *start_);
}

}  // namespace tilewise::cli
