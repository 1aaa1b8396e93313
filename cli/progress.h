// A bar on standard error while something takes its time; nothing if that is not a terminal.
#pragma once

#include <cstdint>
#include <string>

namespace tilewise::cli {

class Progress {
 public:
  explicit Progress(int64_t steps);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress() { clear(); }

  void show(int64_t done, const std::string& doing);  // draws at most 20 times a second
  void clear();

 private:
  int64_t steps_;
  int64_t next_ns_ = 0;
  bool terminal_, drawn_ = false;
};

}  // namespace tilewise::cli
