#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>

#include "cli/commands.h"
#include "cli/files/output_file.h"
#include "cli/standard_streams.h"
#include "cli/suggest.h"
#include "tilewise/tilewise.h"

namespace tilewise::cli {
namespace {

constexpr std::array<const Command*, 7> kCommands = {&kDemo, &kRun, &kVerify, &kBench, &kTraffic, &kExplain, &kInfo};

constexpr const char* kOutOfMemory = "out of memory";
constexpr const char* kGeneralUsage = R"(Exact attention, tile by tile: run it, check it, measure it.
Usage: tilewise COMMAND [OPTIONS]

Commands:
)";

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

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  names.reserve(kCommands.size());
  for (const Command* command : kCommands) names.emplace_back(command->name);
  return names;
}

std::string general_help() {
  std::string help = kGeneralUsage;
  for (const Command* command : kCommands) help += fmt::format("  {:<10}{}\n", command->name, command->summary);
  return help + kGeneralNotes;
}

std::string version_text() {
  return fmt::format("tilewise {}.{}.{}\n", TW_VERSION >> 16, TW_VERSION >> 8 & 0xff, TW_VERSION & 0xff);
}

// For every operator new that fails, wherever it stands: there is no memory to unwind with, and nothing that would be
// lost but the temporaries.
[[noreturn]] void end_without_memory() {
  remove_temporaries();
  complain(kOutOfMemory);
  _exit(static_cast<int>(ExitCode::out_of_memory));
}

// Before static objects, some of which take memory (CLI11's).
[[gnu::constructor(101)]] void install_new_handler() { std::set_new_handler(end_without_memory); }

std::string help_of(const CLI::App& app, const Command& command) {
  std::string options = app.help();
  // CLI11 leaves two empty lines between groups and none after the summary.
  for (size_t at; (at = options.find("\n\n\n")) != std::string::npos;) options.erase(at, 1);
  options.resize(options.find_last_not_of('\n') + 2);
  return options.insert(options.find("\nUsage:"), "\n") + command.notes + "\n";
}

std::vector<std::string> options_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// The first option that the command does not have, else the first word that belongs to no option.
void check_nothing_left(const CLI::App& app, const std::string& command) {
  const std::vector<std::string> left = app.remaining();
  if (left.empty()) return;
  const auto option = std::find_if(left.begin(), left.end(), [](const auto& word) { return word.starts_with('-'); });
  if (option == left.end()) {
    fail(ExitCode::usage, "unexpected argument {}; see {} --help", in_quotes(left.front()), command);
  }
  const std::string name = option->substr(0, option->find('='));
  const std::string meant = nearest(name, options_of(app));
  if (!meant.empty()) fail(ExitCode::usage, "unknown option {}; did you mean {}?", in_quotes(name), meant);
  fail(ExitCode::usage, "unknown option {}; see {} --help", in_quotes(name), command);
}

[[noreturn]] void refuse_command(std::string_view name) {
  if (name.empty()) fail(ExitCode::usage, "a command is needed; see tilewise --help");
  const std::vector<std::string> known = command_names();
  const std::string meant = nearest(name, known);
  if (!meant.empty()) fail(ExitCode::usage, "no command {}; did you mean {}?", in_quotes(name), meant);
  fail(ExitCode::usage, "no command {}; there are {}; see tilewise --help", in_quotes(name), fmt::join(known, ", "));
}

Action parse_command(const Command& command, int argc, const char* const* argv) {
  const std::string name = std::string("tilewise ") + command.name;
  CLI::App app(command.summary, name);
  app.get_formatter()->column_width(32);
  app.set_help_flag();
  app.allow_extras();  // told by check_nothing_left
  Arguments arguments(app);
  Action action = command.declare(arguments);
  app.set_help_flag("-h,--help", "print this and exit")->group("Help");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    write_output(help_of(app, command));
    return {};
  } catch (const CLI::ParseError& error) {
    fail(ExitCode::usage, "{}; see {} --help", error.what(), name);
  }
  check_nothing_left(app, name);
  return action;
}

int complain_and_end(const char* message, ExitCode code) {
  complain(message);
  return static_cast<int>(code);
}

}  // namespace

Action parse_command_line(int argc, const char* const* argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--help" || name == "-h" || name == "help") {
    write_output(general_help());
    return {};
  }
  if (name == "--version") {
    write_output(version_text());
    return {};
  }
  for (const Command* command : kCommands) {
    if (name != command->name) continue;
    complain_of(command->name);
    return parse_command(*command, argc - 1, argv + 1);
  }
  refuse_command(name);
}

int run_command_line(int argc, const char* const* argv) {
  occupy_standard_descriptors();
  try {
    const Action action = parse_command_line(argc, argv);
    const ExitCode code = action ? action() : ExitCode::ok;
    // What was printed has also arrived: a full disk behind `> file` is an error.
    if (!flush_output()) fail(ExitCode::cannot_write, "standard output: cannot write: {}", std::strerror(errno));
    return static_cast<int>(code);
  } catch (const Failure& failure) {
    return complain_and_end(failure.what(), failure.code);
  } catch (const std::bad_alloc&) {
    return complain_and_end(kOutOfMemory, ExitCode::out_of_memory);
  } catch (const std::exception& error) {
    return complain_and_end(error.what(), ExitCode::internal);
  }
}

}  // namespace tilewise::cli
