// Every kernel for GPUs on every case, against the oracle, within the tolerance of contract C8. Outputs, workspace and
// all memory around them are poisoned. The last lines say what was served, refused and wrong.
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <memory>

#include "core/backend.h"
#include "gpu/trials.h"

namespace tilewise::gpu {
namespace {

constexpr size_t kMostNames = 25;  // of failing cases that the summary lists

struct Summary {
  struct Counts {
    int served = 0, refused = 0;
  };
  std::map<std::string, Counts> kernels;
  std::map<std::string, int> refusals;
  std::vector<std::string> failed;  // case, and the first thing that is wrong
  int run = 0, lost = 0;

  void add(const Trial& trial, const Outcome& outcome) {
    if (outcome.lost) {
      ++lost;
      return;
    }
    ++run;
    for (const auto& [kernel, result] : outcome.kernels) {
      const bool served = result == "served";
      ++(served ? kernels[kernel].served : kernels[kernel].refused);
      if (!served) ++refusals[result];
    }
    if (!outcome.failures.empty()) failed.push_back(trial.name() + "\n    " + outcome.failures[0]);
  }

  void print() const {
    for (const auto& [what, count] : refusals) std::printf("%5d %s\n", count, what.c_str());
    for (size_t i = 0; i < std::min(failed.size(), kMostNames); ++i) std::printf("failed: %s\n", failed[i].c_str());
    if (failed.size() > kMostNames) std::printf("... and %zu more\n", failed.size() - kMostNames);
    for (const auto& [kernel, counts] : kernels) {
      std::printf("%-24s served %4d, refused %4d\n", kernel.c_str(), counts.served, counts.refused);
    }
    if (lost > 0) std::printf("%d trials did not run: the GPU was lost\n", lost);
    std::printf("%d trials (a case on a family of kernels) run, %zu failed\n", run, failed.size());
  }
};

Summary& summary() {
  static Summary summary;
  return summary;
}

// The trials that the filter lets through, started before the first test and joined after the last.
class Beside : public testing::Environment {
 public:
  void SetUp() override {
    std::vector<size_t> chosen;
    const testing::UnitTest& all = *testing::UnitTest::GetInstance();
    for (int i = 0; i < all.total_test_suite_count(); ++i) {
      const testing::TestSuite& suite = *all.GetTestSuite(i);
      for (int j = 0; j < suite.total_test_count(); ++j) {
        const testing::TestInfo& test = *suite.GetTestInfo(j);
        if (test.should_run() && test.value_param()) chosen.push_back(std::stoul(test.value_param()));
      }
    }
    std::sort(chosen.begin(), chosen.end());
    runner_ = std::make_unique<Runner>(std::move(chosen));
  }
  void TearDown() override { runner_.reset(); }
  static Runner& runner() { return *runner_; }

 private:
  static inline std::unique_ptr<Runner> runner_;
};

class GpuKernelsTest : public testing::TestWithParam<size_t> {};

TEST_P(GpuKernelsTest, MatchesTheOracle) {
  const Trial& trial = trials()[GetParam()];
  const Outcome outcome = Beside::runner().wait_for(GetParam());
  summary().add(trial, outcome);
  RecordProperty("case", trial.name());
  for (const auto& [kernel, result] : outcome.kernels) RecordProperty(kernel, result);
  for (const std::string& what : outcome.failures) ADD_FAILURE() << trial.name() << "\n" << what;
  if (outcome.lost) GTEST_SKIP() << "an earlier kernel has left the GPU unusable";
}

std::string test_name(const testing::TestParamInfo<size_t>& info) {
  const Trial& trial = trials()[info.param];
  std::string name = trial.family + "_" + std::to_string(info.param) + "_" + trial.name();
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

std::vector<size_t> indices(std::span<const cases::Case> list, bool slow) {
  std::vector<size_t> chosen;
  for (size_t i = 0; i < trials().size(); ++i) {
    const cases::Case* c = trials()[i].description;
    if (c >= list.data() && c < list.data() + list.size() && c->slow == slow) chosen.push_back(i);
  }
  return chosen;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GpuKernelsTest);
INSTANTIATE_TEST_SUITE_P(SlowTable, GpuKernelsTest, testing::ValuesIn(indices(cases::all_cases(), true)), test_name);
INSTANTIATE_TEST_SUITE_P(Few, GpuKernelsTest, testing::ValuesIn(indices(cases::few_cases(), false)), test_name);
INSTANTIATE_TEST_SUITE_P(Table, GpuKernelsTest, testing::ValuesIn(indices(cases::all_cases(), false)), test_name);
INSTANTIATE_TEST_SUITE_P(Tiles, GpuKernelsTest, testing::ValuesIn(indices(cases::tile_cases(), false)), test_name);

// A kernel that hangs is stopped from outside, by `timeout`: say which one it was.
void say_what_hangs(int) {
  const auto say = [](const char* text) { (void)!write(STDOUT_FILENO, text, std::strlen(text)); };
  say("stopped in ");
  say(running_now());
  say("\n");
  _exit(EXIT_FAILURE);
}

}  // namespace
}  // namespace tilewise::gpu

int main(int argc, char** argv) {
  using namespace tilewise;
  GTEST_FLAG_SET(brief, true);
  testing::InitGoogleTest(&argc, argv);
  if (GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();
  if (const Status status = check_gpu(0); !status.ok()) {
    std::printf("skipped: %s\n", status.message.chars);
    return EXIT_SUCCESS;
  }
  std::signal(SIGTERM, gpu::say_what_hangs);
  testing::AddGlobalTestEnvironment(new gpu::Beside);
  const int result = RUN_ALL_TESTS();
  gpu::summary().print();
  return result;
}
