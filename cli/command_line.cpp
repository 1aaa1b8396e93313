#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <string_view>

#include "cli/commands.h"
#include "tilewise/tilewise.h"

namespace tilewise::cli {
namespace {

constexpr std::array<const Command*, 7> kCommands = {&kDemo, &kRun, &kVerify, &kBench, &kTraffic, &kExplain, &kInfo};

constexpr const char* kUsage = "Usage: tilewise COMMAND [OPTIONS]";

constexpr const char* kGeneralNotes = R"(
`tilewise COMMAND --help` shows the options of a command, with examples.

Examples:
  tilewise demo
  tilewise run layer.safetensors --causal --output result.safetensors
  tilewise bench --kernel tiled,standard --seqlen 512,2048 --causal
  tilewise explain --heads 32 --kv-heads 8 --seqlen 4096 --head-dim 128

Exit codes:
  0  all is well
  1  a check failed: a result is not within its tolerance
  2  an option, or a tensor of the problem, breaks a rule
  3  an input file is missing, truncated or not what it should be
  4  an output cannot be written; nothing of it is left behind
  5  legal, but no kernel of this build on this machine serves it
  6  out of memory
  7  a bug in tilewise
)";

std::string general_help() {
  std::string help =
      fmt::format("Exact attention, tile by tile: run it, check it, measure it.\n{}\n\nCommands:\n", kUsage);
  for (const Command* command : kCommands) help += fmt::format("  {:<10}{}\n", command->name, command->summary);
  return help + kGeneralNotes;
}

std::string version_text() {
  return fmt::format("tilewise {}.{}.{}\n", TW_VERSION >> 16, TW_VERSION >> 8 & 0xff, TW_VERSION & 0xff);
}

int complain(const std::string& where, const std::string& message, ExitCode code) {
  fmt::print(stderr, "{}: {}\n", where, message);
  return static_cast<int>(code);
}

// What was printed has also arrived: a full disk behind `> file` is an error.
int finish(const std::string& where, ExitCode code) {
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
    return complain(where, fmt::format("standard output: cannot write: {}", std::strerror(errno)),
                    ExitCode::cannot_write);
  }
  return static_cast<int>(code);
}

int perform(const std::string& where, const Action& action) {
  try {
    return finish(where, action());
  } catch (const Failure& failure) {
    return complain(where, failure.what(), failure.code);
  } catch (const std::bad_alloc&) {
    return complain(where, "out of memory", ExitCode::out_of_memory);
  } catch (const std::exception& error) {
    return complain(where, error.what(), ExitCode::internal);
  }
}

std::string help_of(const CLI::App& app, const Command& command) {
  std::string options = app.help();
  // CLI11 leaves two empty lines between groups and none after the summary.
  for (size_t at; (at = options.find("\n\n\n")) != std::string::npos;) options.erase(at, 1);
  options.resize(options.find_last_not_of('\n') + 2);
  return options.insert(options.find("\nUsage:"), "\n") + command.notes + "\n";
}

int run_command(const Command& command, int argc, const char* const* argv) {
  const std::string where = std::string("tilewise ") + command.name;
  CLI::App app(command.summary, where);
  app.get_formatter()->column_width(32);
  app.set_help_flag();
  Arguments arguments(app);
  const Action action = command.declare(arguments);
  app.set_help_flag("-h,--help", "print this and exit")->group("Help");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", help_of(app, command));
    return finish(where, ExitCode::ok);
  } catch (const CLI::ParseError& error) {
    return complain(where, fmt::format("{}\nSee {} --help.", error.what(), where), ExitCode::usage);
  }
  return perform(where, action);
}

}  // namespace

int run_command_line(int argc, const char* const* argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h" || name == "help") {
    fmt::print("{}", general_help());
    return finish("tilewise", ExitCode::ok);
  }
  if (name == "--version") {
    fmt::print("{}", version_text());
    return finish("tilewise", ExitCode::ok);
  }
  const auto* const found =
      std::find_if(kCommands.begin(), kCommands.end(), [&](const Command* command) { return name == command->name; });
  if (found != kCommands.end()) return run_command(**found, argc - 1, argv + 1);
  const std::string problem = name.empty() ? "a command is needed" : "no command " + in_quotes(name);
  return complain("tilewise", fmt::format("{}\n{}\nSee tilewise --help.", problem, kUsage), ExitCode::usage);
}

}  // namespace tilewise::cli
