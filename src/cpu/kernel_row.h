// The shape of the CPU's rows of the kernel table. A Call is one pass of a family for one set of vector traits:
//   kPass, kRank, kAlgorithm
//   static void refuse(const Problem&, Text& reason)        leaves `reason` empty if it serves the problem
//   Call(const Problem&, const Settings&, char* workspace)  with `workspace` null it only counts
//   Sizing sizing() const
//   void run(const Parallel&)
#pragma once

#include "core/kernel.h"
#include "cpu/runs_on.h"

namespace tilewise::cpu {

template <class Call>
Sizing size_call(const Problem& problem, const Settings& settings) {
  return Call(problem, settings, nullptr).sizing();
}

template <class Call>
Status launch_call(const Problem& problem, const Settings& settings, const Launch& launch) {
  Call(problem, settings, launch.workspace).run(launch.parallel);
  return {};
}

template <class Call>
consteval Kernel kernel_row(const char* name, Isa isa) {
  return {.name = name,
          .pass = Call::kPass,
          .rank = Call::kRank,
          .algorithm = Call::kAlgorithm,
          .isa = isa,
          .device_type = TW_CPU,
          .runs_on = instruction_set(isa).runs_on,
          .refuse = Call::refuse,
          .size = size_call<Call>,
          .launch = launch_call<Call>};
}

}  // namespace tilewise::cpu
