// The commands, one file each.
#pragma once

#include "cli/arguments.h"

namespace tilewise::cli {

extern const Command kInfo, kDemo, kRun, kVerify, kBench, kTraffic, kExplain;

// What the arguments ask for; nothing if that was help or the version, which are printed here. Throws Failure.
Action parse_command_line(int argc, const char* const* argv);

// Everything between main's arguments and its exit code.
int run_command_line(int argc, const char* const* argv);

}  // namespace tilewise::cli
