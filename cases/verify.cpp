#include "cases/verify.h"

namespace tilewise::cases {
namespace {

constexpr size_t kMostFailures = 20;

// One problem, both passes.
class Trial {
 public:
  Trial(const VerifyOptions& options, int64_t index, VerifyReport& report)
      : options_(options), index_(index), case_(random_case(options.seed, index)), data_(case_), report_(report) {}

  // A problem counts as run if the kernel serves every pass of it that it has.
  void run() {
    Expected expected;
    bool refused = false;
    if (const Status status = expect(data_, expected); !status.ok()) {
      fail("", status.message.chars);
    } else {
      refused = !run_forward(expected) || !run_backward(expected);
    }
    ++(refused ? report_.refused : report_.run);
    report_.failed += failed_;
  }

 private:
  // False if the kernel refused.
  bool run_forward(const Expected& expected) {
    forward_ = expected.exact;
    if (options_.kernel && !has_kernel(options_.kernel, Pass::forward, options_.device_type)) return true;
    const Outputs outputs = data_.outputs();
    if (!run_pass(expected, Pass::forward, outputs)) return false;
    if (case_.lse) forward_ = outputs;
    return true;
  }

  bool run_backward(const Expected& expected) {
    if (!case_.backward || (options_.kernel && !has_kernel(options_.kernel, Pass::backward, options_.device_type)))
      return true;
    return run_pass(expected, Pass::backward, backward_outputs(data_, forward_));
  }

  bool run_pass(const Expected& expected, Pass pass, const Outputs& outputs) {
    RunOptions run;
    run.kernel = options_.kernel, run.threads = options_.threads, run.device_type = options_.device_type;
    Plan plan;
    const Status status = run_case(data_, pass, run, outputs, plan);
    if (status.code == TW_UNSUPPORTED) {
      ++report_.refusals[status.message.chars];
      return false;
    }
    if (!status.ok()) {
      fail("", status.message.chars);
      return true;
    }
    for (const Verdict& verdict : judge(data_, expected, pass, outputs)) {
      WorstRatio& worst = report_.worst[verdict.output];
      if (verdict.ratio() >= worst.ratio) worst = {verdict.ratio(), index_, case_.name()};
      if (!verdict.ok()) fail(plan.kernel->name, verdict.text());
    }
    return true;
  }

  void fail(const std::string& kernel, const std::string& what) {
    failed_ = true;
    if (report_.failures.size() < kMostFailures) report_.failures.push_back({index_, kernel, case_.name(), what});
  }

  const VerifyOptions& options_;
  const int64_t index_;
  const Case case_;
  const CaseData data_;
  VerifyReport& report_;
  Outputs forward_;  // what the backward is given
  bool failed_ = false;
};

}  // namespace

bool has_kernel(const char* part, Pass pass, int32_t device_type) {
  for (const Kernel* kernel : kernels(device_type))
    if (kernel->pass == pass && names_kernel(part, kernel->name)) return true;
  return false;
}

VerifyReport verify(const VerifyOptions& options, const std::function<void(const VerifyReport&)>& progress) {
  VerifyReport report;
  while (report.run < options.count && report.drawn < kMostDraws * options.count) {
    Trial(options, options.first + report.drawn, report).run();
    ++report.drawn;
    if (progress) progress(report);
  }
  return report;
}

}  // namespace tilewise::cases
