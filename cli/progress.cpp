#include "cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "cli/standard_streams.h"

namespace tilewise::cli {

Progress::Progress(int64_t steps) : steps_(std::max<int64_t>(1, steps)), terminal_(isatty(STDERR_FILENO)) {}

void Progress::show(int64_t done, const std::string& doing) {
  if (!terminal_) return;
  constexpr int64_t kInterval = 50'000'000;
  const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
  if (now < next_ns_) return;
  next_ns_ = now + kInterval;
  constexpr int64_t kWidth = 24;
  const auto filled = static_cast<size_t>(std::clamp<int64_t>(kWidth * done / steps_, 0, kWidth));
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
  write_error(fmt::format("\r[{}] {}/{} {:.40}\x1b[K", bar, done, steps_, doing));
  drawn_ = true;
}

void Progress::clear() {
  if (!drawn_) return;
  write_error("\r\x1b[K");
  drawn_ = false;
}

}  // namespace tilewise::cli
