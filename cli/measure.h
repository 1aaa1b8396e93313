// Times of several calls, taken in turns with the FMA probe, so that a disturbance meets all of them alike.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cli/workload.h"

namespace tilewise::cli {

struct Timing {
  std::vector<double> ms;       // of each run
  std::vector<double> of_peak;  // each run's FLOP/s over that of the faster probe beside it; GPU: share of its roof
};

struct Effort {
  double seconds = 0.5;    // of each call, about
  int64_t least_runs = 3;  // whatever they take
};

// `step` is told before each round how much of the effort is done, from 0 to 1.
std::vector<Timing> measure(const std::vector<const Call*>& calls, const Effort& effort,
                            const std::function<void(double done)>& step);

double quantile(std::vector<double> values, double q);  // q = 0.5: the median
inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

}  // namespace tilewise::cli
