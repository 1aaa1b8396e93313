// Seconds since construction: CPU time of the calling thread, or wall time.
#pragma once

#include <ctime>

namespace tilewise::cli {

class Stopwatch {
 public:
  explicit Stopwatch(bool own_cpu_time)
      : clock_(own_cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC), start_(now()) {}
  double seconds() const { return now() - start_; }

 private:
  double now() const {
    timespec t;
    clock_gettime(clock_, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  }

  clockid_t clock_;
  double start_;
};

}  // namespace tilewise::cli
