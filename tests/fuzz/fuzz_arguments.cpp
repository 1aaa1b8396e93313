// Bytes as the arguments of the command, one a line. What only describes a problem also runs.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "fuzz/require.h"

namespace tilewise::fuzz {
namespace {

constexpr size_t kMostArguments = 64;

std::vector<std::string> lines_of(const uint8_t* data, size_t size) {
  std::vector<std::string> lines = {"tilewise"};
  const char *at = reinterpret_cast<const char*>(data), *const end = at + size;
  while (at < end && lines.size() < kMostArguments) {
    const char* const stop = std::find(at, end, '\n');
    lines.emplace_back(at, std::find(at, stop, '\0'));
    at = stop < end ? stop + 1 : end;
  }
  return lines;
}

void run(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv;
  argv.reserve(arguments.size() + 1);
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  argv.push_back(nullptr);
  const cli::Action action = cli::parse_command_line(static_cast<int>(arguments.size()), argv.data());
  if (action && arguments[1] == cli::kExplain.name) action();
}

void require_a_message(const cli::Failure& failure) {
  const bool expected = failure.code == cli::ExitCode::usage || failure.code == cli::ExitCode::unsupported;
  require(expected, "the code is that of a broken rule", failure.what());
  require(*failure.what() != 0, "a failure says why");
}

}  // namespace
}  // namespace tilewise::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  tilewise::fuzz::require(std::freopen("/dev/null", "w", stdout), "standard output can be thrown away");
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    tilewise::fuzz::run(tilewise::fuzz::lines_of(data, size));
  } catch (const tilewise::cli::Failure& failure) {
    tilewise::fuzz::require_a_message(failure);
  }
  return 0;
}
