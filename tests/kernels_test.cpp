// Every kernel of the table on every case, against the oracle, within the tolerance of contract C8.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <map>

#include "cases/measure.h"

namespace tilewise::cases {
namespace {

constexpr int64_t kMostPairsOfSmallBlocks = 20000;

// Kernels that may refuse a case, by name; all others serve every one.
bool may_refuse(const Kernel& kernel) { return names_kernel("v1", kernel.name); }

// What was refused, printed once at the end: a refusal is no pass.
class Refusals : public testing::Environment {
 public:
  static std::map<std::string, int>& counts() {
    static std::map<std::string, int> counts;
    return counts;
  }
  void TearDown() override {
    for (const auto& [what, count] : counts()) std::printf("refused %4d cases: %s\n", count, what.c_str());
  }
};
const auto* const kRefusals = testing::AddGlobalTestEnvironment(new Refusals);

class KernelsTest : public testing::TestWithParam<const Case*> {};

void check_masks(const CaseData& data, const Problem& problem) {
  const Case& c = data.description();
  for (int64_t b = 0; b < c.batch; ++b) {
    const Sequence s = sequence_of(problem, b);
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t i = 0; i < c.rows(b); ++i) {
        const KeyRange want = data.range(b, h, i), got = live_keys(problem, s, h, i);
        ASSERT_TRUE(got.lo == want.lo && got.hi == want.hi)
            << "sequence " << b << " head " << h << " row " << i << " sees keys " << got.lo << " to " << got.hi
            << ", not " << want.lo << " to " << want.hi;
      }
  }
}

// For docs/support.md, which scripts/support_grid.py writes from the results of these tests.
void record(const Kernel& kernel, const std::string& outcome) { testing::Test::RecordProperty(kernel.name, outcome); }

// True if it ran.
bool run_and_judge(const CaseData& data, const Expected& expected, const Kernel& kernel, const Outputs& outputs,
                   int64_t fast_memory = 0) {
  RunOptions options;
  options.kernel = kernel.name, options.fast_memory = fast_memory;
  Plan plan;
  const Status status = run_case(data, kernel.pass, options, outputs, plan);
  if (status.code == TW_UNSUPPORTED && may_refuse(kernel)) {
    ++Refusals::counts()[status.message.chars];
    record(kernel, std::string("refused: ") + status.message.chars);
    return false;
  }
  EXPECT_EQ(status.code, TW_OK) << kernel.name << ": " << status.message.chars;
  if (!status.ok()) return false;
  EXPECT_EQ(plan.kernel, &kernel);
  for (const Verdict& verdict : judge(data, expected, kernel.pass, outputs)) {
    EXPECT_TRUE(verdict.ok()) << kernel.name << " " << verdict.text();
  }
  record(kernel, "served");
  return true;
}

// Kernels whose blocks follow from the size of the fast memory, which on this machine holds most cases whole: again
// with blocks of a few keys.
void judge_with_small_blocks(const CaseData& data, const Expected& expected, const Kernel& kernel,
                             const std::function<Outputs()>& outputs) {
  if (kernel.rank != Rank::rung || names_kernel("portable", kernel.name)) return;  // portable is the same code
  const Case& c = data.description();
  for (const int64_t floats : {64, 5000}) {
    if (floats == 64 && c.batch * c.heads * c.seqlen_q * c.seqlen_k > kMostPairsOfSmallBlocks) continue;
    SCOPED_TRACE(floats);
    run_and_judge(data, expected, kernel, outputs(), floats);
  }
}

// The results of all forward kernels, by kernel; a kernel that ran without lse gives those of the oracle.
using Results = std::map<const Kernel*, Outputs>;

void run_forwards(const CaseData& data, const Expected& expected, Results& results) {
  for (const Kernel* kernel : kernels(TW_CPU)) {
    Text why_not;
    if (kernel->pass != Pass::forward || !kernel->runs_on(0, why_not)) continue;
    const Outputs outputs = data.outputs();
    if (!run_and_judge(data, expected, *kernel, outputs)) continue;
    judge_with_small_blocks(data, expected, *kernel, [&] { return data.outputs(); });
    results.emplace(kernel, data.description().lse ? outputs : expected.exact);
  }
}

void run_backwards(const CaseData& data, const Expected& expected, const Results& results) {
  for (const Kernel* kernel : kernels(TW_CPU)) {
    Text why_not;
    if (kernel->pass != Pass::backward || !kernel->runs_on(0, why_not)) continue;
    const auto own = results.find(forward_of(*kernel));
    const Outputs& forward = own == results.end() ? expected.exact : own->second;
    if (!run_and_judge(data, expected, *kernel, backward_outputs(data, forward))) continue;
    judge_with_small_blocks(data, expected, *kernel, [&] { return backward_outputs(data, forward); });
  }
}

TEST_P(KernelsTest, MatchesTheOracle) {
  const Case& c = *GetParam();
  SCOPED_TRACE(c.name());
  RecordProperty("case", c.name());
  const CaseData data(c);
  Problem problem;
  const Outputs outputs = data.outputs();
  const Status made = make_problem(data.attention(outputs, Pass::forward), nullptr, true, problem);
  ASSERT_TRUE(made.ok()) << made.message.chars;
  check_masks(data, problem);
  Expected expected;
  const Status status = expect(data, expected);
  ASSERT_TRUE(status.ok()) << status.message.chars;
  Results results;
  run_forwards(data, expected, results);
  if (c.backward) run_backwards(data, expected, results);
}

std::vector<const Case*> table(bool slow) {
  std::vector<const Case*> chosen;
  for (const Case& c : all_cases())
    if (c.slow == slow) chosen.push_back(&c);
  return chosen;
}

std::vector<const Case*> few() {
  std::vector<const Case*> chosen;
  for (const Case& c : few_cases()) chosen.push_back(&c);
  return chosen;
}

std::string identifier(std::string name) {
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

std::string test_name(const testing::TestParamInfo<const Case*>& info) {
  return identifier(std::to_string(info.index) + "_" + info.param->name());
}

// A kernel that is left out above is reported by its name.
class KernelOfThisBuild : public testing::TestWithParam<const Kernel*> {};

TEST_P(KernelOfThisBuild, RunsHere) {
  Text why_not;
  if (!GetParam()->runs_on(0, why_not)) GTEST_SKIP() << why_not.chars;
}

INSTANTIATE_TEST_SUITE_P(Table, KernelOfThisBuild, testing::ValuesIn(kernels(TW_CPU).begin(), kernels(TW_CPU).end()),
                         [](const auto& info) { return identifier(info.param->name); });
INSTANTIATE_TEST_SUITE_P(Few, KernelsTest, testing::ValuesIn(few()), test_name);
INSTANTIATE_TEST_SUITE_P(Table, KernelsTest, testing::ValuesIn(table(false)), test_name);
INSTANTIATE_TEST_SUITE_P(SlowTable, KernelsTest, testing::ValuesIn(table(true)), test_name);

}  // namespace
}  // namespace tilewise::cases
