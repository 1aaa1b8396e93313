#include "cases/measure.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "cpu/reference/reference.h"

namespace tilewise::cases {
namespace {

constexpr uint64_t kAlignment = 256;

struct Free {
  void operator()(char* p) const { std::free(p); }
};

// Exactly so many bytes, so that a sanitizer sees one too many; full of NaN.
std::unique_ptr<char, Free> make_workspace(uint64_t bytes) {
  void* place = nullptr;
  if (posix_memalign(&place, kAlignment, std::max(bytes, kAlignment))) return nullptr;
  std::memset(place, 0xff, bytes);
  return std::unique_ptr<char, Free>(static_cast<char*>(place));
}

Status problem_of(const CaseData& data, Pass pass, const Outputs& outputs, Problem& problem) {
  const tw_attention attention = data.attention(outputs, pass);
  if (pass == Pass::forward) return make_problem(attention, nullptr, true, problem);
  const tw_attention_grad gradients = data.gradients(outputs);
  return make_problem(attention, &gradients, true, problem);
}

// The same problem with other memory behind its outputs.
Problem redirect(Problem problem, const Outputs& to) {
  problem.out = to.out.tensor();
  if (problem.lse) problem.lse = to.lse.tensor();
  problem.dq = to.dq.tensor(), problem.dk = to.dk.tensor(), problem.dv = to.dv.tensor();
  problem.dbias = to.dbias.tensor(), problem.dsink = to.dsink.tensor();
  return problem;
}

template <class Real, cpu::reference::Terms kTerms = cpu::reference::Terms::gradient>
Status run_reference(const Problem& problem, Type stored) {
  Settings settings;
  settings.workers = available_cores();
  const uint64_t bytes = cpu::reference::workspace_bytes<Real>(problem, settings);
  const auto workspace = make_workspace(bytes);
  if (!workspace) return failure(TW_OUT_OF_MEMORY, "no memory for the reference's workspace");
  Launch launch;
  launch.workspace = workspace.get(), launch.workspace_bytes = bytes, launch.parallel = own_threads();
  const cpu::reference::Reference<Real, kTerms> reference(problem, stored, settings, launch);
  problem.pass == Pass::forward ? reference.forward() : reference.backward();
  return {};
}

struct Named {
  const char* name;
  Stored Outputs::*output;
};
constexpr Named kForward[] = {{"out", &Outputs::out}, {"lse", &Outputs::lse}};
constexpr Named kBackward[] = {{"dq", &Outputs::dq},
                               {"dk", &Outputs::dk},
                               {"dv", &Outputs::dv},
                               {"dbias", &Outputs::dbias},
                               {"dsink", &Outputs::dsink}};

std::span<const Named> outputs_of(Pass pass) {
  return pass == Pass::forward ? std::span<const Named>(kForward) : std::span<const Named>(kBackward);
}

// False if some number overflowed the type.
bool holds(const Outputs& outputs, const Outputs& exact, Pass pass) {
  bool all = true;
  for (const auto& [name, output] : outputs_of(pass)) {
    const Stored &got = outputs.*output, &want = exact.*output;
    got.each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
      all = all && (std::isfinite(got.at(a, b, c, d)) || !std::isfinite(want.at(a, b, c, d)));
    });
  }
  return all;
}

void clear(Stored& t) {
  t.each([&](int64_t a, int64_t b, int64_t c, int64_t d) { t.set(0, a, b, c, d); });
}

// With the exact out and lse.
Status run_lse_error(const CaseData& data, Problem problem, const Outputs& exact, Outputs& error) {
  error = data.dense_outputs(Type::f64);
  for (const auto& [name, output] : kBackward) clear(error.*output);
  error.out = exact.out, error.lse = exact.lse;
  problem.accumulate = false;
  return run_reference<double, cpu::reference::Terms::lse_error>(redirect(problem, error), Type::f64);
}

// Standard attention; where the type of q cannot hold the scores, they lie in memory as fp32.
Status run_standard(const CaseData& data, const Problem& problem, const Outputs& exact, Outputs& standard) {
  const Outputs start = standard;
  if (Status status = run_reference<float>(redirect(problem, standard), problem.type); !status.ok()) return status;
  if (holds(standard, exact, problem.pass)) return {};
  standard = data.dense_outputs({});
  if (problem.pass == Pass::backward) standard.out = start.out, standard.lse = start.lse;
  return run_reference<float>(redirect(problem, standard), Type::f32);
}

// What a forward gives to its backward; rows that no sequence owns stay poison.
void give(const CaseData& data, const Stored& from, Stored& to, bool is_lse) {
  const Case& c = data.description();
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t i = 0; i < c.rows(b); ++i)
      for (int64_t h = 0; h < c.heads; ++h) {
        const int64_t slot = data.q_slot(b), row = data.q_row(b, i);
        for (int64_t d = 0; d < to.shape()[3]; ++d) {
          const int64_t second = is_lse ? h : row, third = is_lse ? row : h;
          to.set(from.at(slot, second, third, d), slot, second, third, d);
        }
      }
}

}  // namespace

Status expect(const CaseData& data, Expected& expected) {
  expected.exact = data.dense_outputs(Type::f64);
  expected.standard = data.dense_outputs({});
  const Outputs asked = data.outputs();
  expected.out = asked.out, expected.lse = asked.lse;
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    if (pass == Pass::backward && !data.description().backward) break;
    Problem problem;
    if (Status status = problem_of(data, pass, asked, problem); !status.ok()) return status;
    if (Status status = run_reference<double>(redirect(problem, expected.exact), Type::f64); !status.ok()) {
      return status;
    }
    if (Status status = run_standard(data, problem, expected.exact, expected.standard); !status.ok()) return status;
    if (pass == Pass::forward) continue;
    if (Status status = run_lse_error(data, problem, expected.exact, expected.lse_error); !status.ok()) return status;
  }
  give(data, expected.exact.out, expected.out, false);
  give(data, expected.exact.lse, expected.lse, true);
  return {};
}

Outputs outputs_for(const CaseData& data, const Expected& expected, Pass pass) {
  Outputs outputs = data.outputs();
  if (pass == Pass::backward) outputs.out = expected.out, outputs.lse = expected.lse;
  return outputs;
}

Status run_case(const CaseData& data, Pass pass, const RunOptions& options, const Outputs& outputs, Plan& plan) {
  Problem problem;
  if (Status status = problem_of(data, pass, outputs, problem); !status.ok()) return status;
  if (options.threads > 0) problem.threads = options.threads;
  PlanOptions plan_options;
  plan_options.force = options.kernel, plan_options.fast_memory = options.fast_memory;
  if (Status status = make_plan(problem, plan_options, plan); !status.ok()) return status;
  const auto workspace = make_workspace(plan.sizing.workspace_bytes);
  if (!workspace)
    return failure(TW_OUT_OF_MEMORY, "no memory for a workspace of %llu bytes",
                   static_cast<unsigned long long>(plan.sizing.workspace_bytes));
  Launch launch;
  launch.workspace = workspace.get(), launch.workspace_bytes = plan.sizing.workspace_bytes;
  launch.parallel = options.pool ? *options.pool : own_threads();
  return run_plan(plan, problem, launch);
}

// ---- Judging.

namespace {

struct Errors {
  double largest = 0, error = 0, standard_error = 0;
  std::string trouble;
};

Errors errors_of(const Stored& got, const Stored& exact, const Stored& standard) {
  Errors e;
  got.each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
    const double x = got.at(a, b, c, d), want = exact.at(a, b, c, d), plain = standard.at(a, b, c, d);
    if (!std::isfinite(want) || !std::isfinite(x)) {
      if (x == want || (std::isnan(x) && std::isnan(want)) || !e.trouble.empty()) return;
      char text[160];
      std::snprintf(text, sizeof text, "element (%lld,%lld,%lld,%lld) is %g, must be %g", static_cast<long long>(a),
                    static_cast<long long>(b), static_cast<long long>(c), static_cast<long long>(d), x, want);
      e.trouble = text;
      return;
    }
    e.largest = std::max(e.largest, std::abs(want));
    e.error = std::max(e.error, std::abs(x - want));
    if (std::isfinite(plain)) e.standard_error = std::max(e.standard_error, std::abs(plain - want));
  });
  return e;
}

double largest(const Stored& t) {
  double most = 0;
  t.each([&](int64_t a, int64_t b, int64_t c, int64_t d) { most = std::max(most, std::abs(t.at(a, b, c, d))); });
  return most;
}

}  // namespace

std::string Verdict::text() const {
  char line[320];
  std::snprintf(line, sizeof line, "%s: error %.3g, allowed %.3g%s%s", output, error, allowed,
                trouble.empty() ? "" : "; ", trouble.c_str());
  return line;
}

std::vector<Verdict> judge(const CaseData& data, const Expected& expected, Pass pass, const Outputs& outputs) {
  std::vector<Verdict> verdicts;
  const double share = data.description().type == Type::f32 ? 1e-6 : 1e-5;
  for (const auto& [name, output] : outputs_of(pass)) {
    const Stored& got = outputs.*output;
    if (!got || (output == &Outputs::lse && !data.description().lse)) continue;
    const Errors e = errors_of(got, expected.exact.*output, expected.standard.*output);
    Verdict verdict{name, e.error, 0, e.trouble};
    // An lse is the logarithm of a sum whose relative error it shows: its unit is 1 at least.
    const double unit = output == &Outputs::lse ? std::max(e.largest, 1.0) : e.largest;
    verdict.allowed = 2 * e.standard_error + share * unit;
    if (pass == Pass::backward) verdict.allowed += largest(expected.lse_error.*output);
    if (!got.gaps_are_untouched()) verdict.trouble += "bytes outside its elements were written";
    verdicts.push_back(verdict);
  }
  return verdicts;
}

}  // namespace tilewise::cases
