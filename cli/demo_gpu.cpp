#include "cli/demo_gpu.h"

#include "cli/failure.h"
#include "cli/measured.h"
#include "cli/sampled_oracle.h"

namespace tilewise::cli {
namespace {

constexpr const char* kGenerations[] = {"standard", "v1", "v2"};
constexpr int64_t kFirstTokens = 512, kGrowth = 4, kSampledRows = 32;
constexpr Effort kEffort{0.05, 5};

}  // namespace

void demo_on_gpu(const DemoData& data, int64_t most_tokens, Table& table,
                 const std::function<void(int64_t tokens, const char* kernel)>& step) {
  for (int64_t tokens = kFirstTokens; tokens <= most_tokens; tokens *= kGrowth) {
    const Workload workload = data.workload({.tokens = tokens, .dtype = Type::bf16, .device = {TW_CUDA, 0}});
    std::vector<Contender> contenders;
    for (const char* kernel : kGenerations) {
      step(tokens, kernel);
      try {
        PlanOptions options;
        options.force = kernel;
        contenders.push_back(first_run(workload, Pass::forward, options));
      } catch (const Failure& failure) {
        if (failure.code != ExitCode::out_of_memory && failure.code != ExitCode::unsupported) throw;
        continue;
      }
      contenders.back().max_error = sampled_error(workload, contenders.back().call, kSampledRows);
    }
    add_timed(table, workload, contenders, kEffort, [](double) {});
  }
}

}  // namespace tilewise::cli
