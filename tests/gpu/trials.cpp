#include "gpu/trials.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <thread>

#include "core/backend.h"

namespace tilewise::gpu {
namespace {

using cases::Case;
using cases::CaseData;
using cases::Expected;
using cases::Outputs;

// Shared memory of a thread block on GPUs of compute capability 8.6 and 8.0, in floats.
constexpr int64_t kSharedLimits[] = {101376 / 4, 166912 / 4};

std::string family_of(const Kernel& kernel) {
  const std::string_view name = kernel.name;
  return std::string(name.substr(0, name.rfind('.')));
}

// One call at a time, so that what breaks the GPU is known by its name.
class TheGpu {
 public:
  Status run(const CaseData& data, const Kernel& kernel, int64_t shared_floats, const Outputs& outputs) {
    const std::lock_guard lock(one_at_a_time_);
    if (lost_) return failure(TW_DEVICE_ERROR, "%s", kLost);
    std::snprintf(running_, sizeof running_, "%s on %s", kernel.name, data.description().name().c_str());
    cases::RunOptions options;
    options.kernel = kernel.name, options.fast_memory = shared_floats, options.device_type = TW_CUDA;
    Plan plan;
    const Status status = cases::run_case(data, kernel.pass, options, outputs, plan);
    lost_ = status.code == TW_DEVICE_ERROR && !cuda_backend()->wait(0, nullptr).ok();
    return status;
  }
  bool lost() {
    const std::lock_guard lock(one_at_a_time_);
    return lost_;
  }
  const char* running() const { return running_; }

 private:
  static constexpr const char* kLost = "an earlier kernel has left the GPU unusable";
  std::mutex one_at_a_time_;
  bool lost_ = false;
  char running_[400] = "nothing";
};

TheGpu& the_gpu() {
  static TheGpu gpu;
  return gpu;
}

// A case, what it must give, and what came out on one family.
class Run {
 public:
  Run(const CaseData& data, const Expected& expected, const Trial& trial)
      : data_(data), expected_(expected), trial_(trial), forward_(expected.exact) {}

  Outcome both_passes() {
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      if (pass == Pass::backward && !data_.description().backward) continue;
      for (const Kernel* kernel : kernels(TW_CUDA)) {
        if (kernel->pass == pass && family_of(*kernel) == trial_.family) run_kernel(*kernel);
      }
    }
    return outcome_;
  }

 private:
  Outputs outputs_of(Pass pass) const {
    return pass == Pass::forward ? data_.outputs() : backward_outputs(data_, forward_);
  }

  void run_kernel(const Kernel& kernel) {
    const Outputs outputs = outputs_of(kernel.pass);
    if (!run_and_judge(kernel, 0, outputs)) return;
    if (kernel.pass == Pass::forward && data_.description().lse) forward_ = outputs;
    if (!trial_.other_limits || kernel.algorithm == Algorithm::naive) return;
    for (const int64_t floats : kSharedLimits) run_and_judge(kernel, floats, outputs_of(kernel.pass));
  }

  // True if it ran.
  bool run_and_judge(const Kernel& kernel, int64_t shared_floats, const Outputs& outputs) {
    const Status status = the_gpu().run(data_, kernel, shared_floats, outputs);
    if (status.code == TW_UNSUPPORTED && kernel.rank != Rank::fallback) {
      outcome_.kernels[kernel.name] = std::string("refused: ") + status.message.chars;
      return false;
    }
    if (!status.ok()) {
      fail(kernel, shared_floats, status.message.chars);
      return false;
    }
    outcome_.kernels[kernel.name] = "served";
    for (const cases::Verdict& verdict : judge(data_, expected_, kernel.pass, outputs)) {
      if (!verdict.ok()) fail(kernel, shared_floats, verdict.text());
    }
    return true;
  }

  void fail(const Kernel& kernel, int64_t shared_floats, const std::string& what) {
    const std::string limit =
        shared_floats == 0 ? "" : " with " + std::to_string(shared_floats * 4) + " bytes of shared memory";
    outcome_.failures.push_back(kernel.name + limit + ": " + what);
  }

  const CaseData& data_;
  const Expected& expected_;
  const Trial& trial_;
  Outputs forward_;  // what the backward is given
  Outcome outcome_;
};

std::vector<Trial> all_trials() {
  std::vector<std::string> families;
  for (const Kernel* kernel : kernels(TW_CUDA)) {
    const std::string family = family_of(*kernel);
    if (std::find(families.begin(), families.end(), family) == families.end()) families.push_back(family);
  }
  std::vector<Trial> all;
  const auto add = [&](const Case& c, bool other_limits) {
    for (const std::string& family : families) all.push_back({&c, family, other_limits});
  };
  for (const Case& c : cases::all_cases())
    if (c.slow) add(c, false);  // first, so that none is waited for alone at the end
  for (const Case& c : cases::few_cases()) add(c, true);
  for (const Case& c : cases::all_cases())
    if (!c.slow) add(c, false);
  for (const Case& c : cases::tile_cases()) add(c, true);
  return all;
}

}  // namespace

const std::vector<Trial>& trials() {
  static const std::vector<Trial> all = all_trials();
  return all;
}

const char* running_now() { return the_gpu().running(); }

Runner::Runner(std::vector<size_t> chosen) : chosen_(std::move(chosen)) {
  for (const size_t trial : chosen_) outcomes_[trial];
  for (int i = 0; i < available_cores(); ++i) threads_.emplace_back([this] { work(); });
}

Runner::~Runner() {
  for (std::thread& thread : threads_) thread.join();
}

void Runner::work() {
  for (;;) {
    size_t first, last;
    {
      const std::lock_guard lock(drawing_);
      first = last = next_;
      const auto same_case = [&] {
        return trials()[chosen_[last]].description == trials()[chosen_[first]].description;
      };
      while (last < chosen_.size() && same_case()) ++last;
      next_ = last;
    }
    if (first == last) return;
    run_trials_of_one_case(first, last);
  }
}

void Runner::run_trials_of_one_case(size_t first, size_t last) {
  const CaseData data(*trials()[chosen_[first]].description);
  Expected expected;
  Status status;
  if (!the_gpu().lost()) status = expect(data, expected);
  for (size_t i = first; i < last; ++i) {
    Outcome outcome;
    if (the_gpu().lost()) {
      outcome.lost = true;
    } else if (!status.ok()) {
      outcome.failures.emplace_back(status.message.chars);
    } else {
      outcome = Run(data, expected, trials()[chosen_[i]]).both_passes();
    }
    outcomes_.at(chosen_[i]).set_value(std::move(outcome));
  }
}

}  // namespace tilewise::gpu
