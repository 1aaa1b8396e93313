// The commands, one file each.
#pragma once

#include "cli/arguments.h"

namespace tilewise::cli {

extern const Command kInfo, kDemo, kRun, kVerify, kBench, kTraffic, kExplain;

// Everything between main's arguments and its exit code.
int run_command_line(int argc, const char* const* argv);

}  // namespace tilewise::cli
