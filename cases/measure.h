// What a case must give, how far standard attention is from it, and how far a kernel is (contract C8).
#pragma once

#include "cases/case_data.h"
#include "core/plan.h"

namespace tilewise::cases {

struct Expected {
  Outputs exact;     // in fp64, from the reference kernel's loops
  Outputs standard;  // standard attention with scores and probabilities in the type of q: its error is the yardstick
  Outputs rounding;  // what rounding may do to each number beyond that (rounding.h)
};

// One pass in fp64: `exact` is dense; a backward reads its out and lse.
Status run_exact(const CaseData& data, Pass pass, const Outputs& exact);

Status expect(const CaseData& data, Expected& expected);

struct RunOptions {
  const char* kernel = nullptr;  // parts of its name; null: the one that planning chooses
  int threads = 0;               // 0: as the case says
  int64_t fast_memory = 0;
  int32_t device_type = TW_CPU;    // of run_case
  const Parallel* pool = nullptr;  // null: the library's own threads
};

// Plans and runs a problem whose tensors have their memory, with a workspace full of NaN of exactly the size asked for.
// `plan` tells what ran. All tensors lie on the host; a GPU gets copies, and what it writes is copied back.
Status run_problem(Problem problem, const RunOptions& options, Plan& plan);

// The same for one pass of a case, into `outputs`. A backward reads outputs.out and outputs.lse.
Status run_case(const CaseData& data, Pass pass, const RunOptions& options, const Outputs& outputs, Plan& plan);

// Poisoned outputs for a backward, with out and lse as the forward left them; rows that no sequence owns are poison
// there too. A backward is given what the forward of its own kernel wrote: scores that cancel make any other lse
// differ from the sum of its exponentials by more than the tolerance.
Outputs backward_outputs(const CaseData& data, const Outputs& forward);

// The forward kernel whose backward this is; null if there is none.
const Kernel* forward_of(const Kernel& backward);

// u of contract C8.
double rounding_unit(const CaseData& data);

struct Verdict {
  const char* output = "";  // "out", "lse", "dq", ...
  double error = 0, allowed = 0;
  std::string trouble;  // what no tolerance covers: NaN, infinity, bytes written outside of elements

  double ratio() const { return error == 0 ? 0 : error / allowed; }
  bool ok() const { return trouble.empty() && error <= allowed; }
  std::string text() const;
};

// One verdict for each output of the pass. Rows and keys that see nothing must be exactly what contract C1 says.
std::vector<Verdict> judge(const CaseData& data, const Expected& expected, Pass pass, const Outputs& outputs);

}  // namespace tilewise::cases
