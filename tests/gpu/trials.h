// Trials: the table of cases on the kernels of a GPU. A trial is one case on one family of kernels ("cuda.v2"), forward
// and backward. The oracle is what takes the time, so trials run in threads beside the tests, which wait for their own.
#pragma once

#include <atomic>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cases/measure.h"

namespace tilewise::gpu {

struct Outcome {
  std::vector<std::string> failures;
  std::map<std::string, std::string> kernels;  // "served", or "refused: " and why
  bool lost = false;                           // an earlier trial left the GPU unusable: this one did not run
};

struct Trial {
  const cases::Case* description;
  std::string family;
  bool other_limits;  // also with the shared memory of other GPUs

  std::string name() const { return description->name(); }
};

// Every case on every family of this build: families of one case stand side by side.
const std::vector<Trial>& trials();

// Runs the trials of these indices, ascending, in threads of its own.
class Runner {
 public:
  explicit Runner(std::vector<size_t> chosen);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  Outcome wait_for(size_t trial) { return outcomes_.at(trial).get_future().get(); }

 private:
  void work();
  void run_trials_of_one_case(size_t first, size_t last);  // in chosen_

  std::vector<size_t> chosen_;
  std::map<size_t, std::promise<Outcome>> outcomes_;
  std::atomic<size_t> next_ = 0;
  std::mutex drawing_;
  std::vector<std::thread> threads_;
};

// What runs on the GPU now, for whoever stops a program that hangs.
const char* running_now();

}  // namespace tilewise::gpu
