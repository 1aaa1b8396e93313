#include "cli/text.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace tilewise::cli {

std::string count_text(int64_t n) {
  const std::string digits = std::to_string(n);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    const bool starts_group = i > 0 && digits[i - 1] != '-' && (digits.size() - i) % 3 == 0;
    if (starts_group) text += ',';
    text += digits[i];
  }
  return text;
}

std::string size_text(int64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) value /= 1024, ++unit;
  return fmt::format("{:.{}f} {}", value, value < 99.95 ? 1 : 0, kUnits[unit]);
}

std::string error_text(double error) { return error == 0 ? "0" : fmt::format("{:.1e}", error); }

std::string time_text(double ms) {
  if (!std::isfinite(ms)) return "-";
  if (ms >= 999.5) return count_text(std::llround(ms));
  return fmt::format("{:.{}f}", ms, ms < 0.9995 ? 3 : ms < 9.995 ? 2 : ms < 99.95 ? 1 : 0);
}

std::string ratio_text(double ratio) { return fmt::format("{:.{}f}x", ratio, ratio < 9.95 ? 2 : ratio < 99.5 ? 1 : 0); }

std::string against_text(double other, double own, const char* better, const char* worse) {
  return other >= own ? fmt::format("{} {}", ratio_text(other / own), better)
                      : fmt::format("{} {}", ratio_text(own / other), worse);
}

}  // namespace tilewise::cli
