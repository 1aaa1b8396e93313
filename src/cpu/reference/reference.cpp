#include "cpu/reference/reference.h"

#include "cpu/kernels.h"
#include "cpu/runs_on.h"

namespace tilewise::cpu {
namespace {

void refuse(const Problem&, Text&) {}

Sizing size(const Problem& problem, const Settings& settings) {
  Sizing sizing;
  sizing.query_rows = reference::kRowsOfUnit;
  sizing.chunk_keys = problem.pass == Pass::backward ? reference::kKeysOfUnit : 0;
  sizing.workspace_bytes = reference::workspace_bytes<double>(problem, settings);
  return sizing;
}

Status forward(const Problem& problem, const Settings& settings, const Launch& launch) {
  reference::Reference<double>(problem, Type::f64, settings, launch).forward();
  return {};
}

Status backward(const Problem& problem, const Settings& settings, const Launch& launch) {
  reference::Reference<double>(problem, Type::f64, settings, launch).backward();
  return {};
}

}  // namespace

const Kernel reference_forward = {"cpu.reference.forward", Pass::forward, Rank::fallback, TW_CPU,
                                  runs_anywhere,           refuse,        size,           forward};
const Kernel reference_backward = {
    "cpu.reference.backward", Pass::backward, Rank::fallback, TW_CPU, runs_anywhere, refuse, size, backward};

}  // namespace tilewise::cpu
