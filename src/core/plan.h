// Plan: which kernel serves a problem, with what tiles and how much workspace; and the run that follows it.
#pragma once

#include "core/kernel.h"

namespace tilewise {

struct PlanOptions {
  const char* force = nullptr;  // parts of a kernel's name; null: TILEWISE_FORCE_KERNEL, else the first that accepts
  int64_t fast_memory = 0;      // M, as in Settings; 0 = L2 bytes / 4; CUDA: what a thread block may have
};

struct Plan {
  const Kernel* kernel = nullptr;
  Settings settings;
  Sizing sizing;
};

// The kernel that is asked for, by parts of its name: by the options or by TILEWISE_FORCE_KERNEL; null: none.
const char* forced_kernel(const PlanOptions& options);

// Why `kernel`, of the problem's pass, does not serve it; empty if it does. `forced`: it was asked for by name.
Text refusal_of(const Kernel& kernel, const Problem& problem, bool forced);

// The kernel, its tiles and workspace; its code is not loaded yet.
Status choose_plan(const Problem& problem, const PlanOptions& options, Plan& plan);
// CUDA: loads the code that a run will start.
Status load_plan(const Plan& plan, const Problem& problem);
// Both: the plan can run.
Status make_plan(const Problem& problem, const PlanOptions& options, Plan& plan);

// Checks lengths, zeroes what no sequence owns (rows past seqused_q or the last offset, and their gradients), launches.
Status run_plan(const Plan& plan, const Problem& problem, const Launch& launch);

}  // namespace tilewise
