// How the command fails: an exit code that docs/cli.md lists and a message for stderr.
#pragma once

#include <fmt/format.h>

#include <array>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace tilewise::cli {

enum class ExitCode : int {
  ok = 0,
  check_failed = 1,  // a result is not within its tolerance
  usage = 2,         // an option, or a tensor of the problem, breaks a rule
  bad_input = 3,     // an input file is missing, truncated or not what it should be
  cannot_write = 4,  // an output cannot be written; nothing is left of it
  unsupported = 5,   // legal, but no kernel here, or not the one asked for, serves it
  out_of_memory = 6,
  internal = 7  // a bug
};

struct Failure : std::runtime_error {
  Failure(ExitCode exit_code, const std::string& message) : std::runtime_error(message), code(exit_code) {}
  ExitCode code;
};

template <typename... Args>
[[noreturn]] void fail(ExitCode code, fmt::format_string<Args...> pattern, Args&&... args) {
  throw Failure(code, fmt::format(pattern, std::forward<Args>(args)...));
}

// Text from outside is shown with control characters as \xNN: it cannot steer a terminal or start a line.
struct ShownByte {
  std::array<char, 4> chars;
  size_t size;
};
ShownByte shown_byte(char c);
std::string printable(std::string_view text);

// The same in quotes, cut after 60 bytes.
std::string in_quotes(std::string_view text);

}  // namespace tilewise::cli
