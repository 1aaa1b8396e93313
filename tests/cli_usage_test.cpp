// The command's help, its errors and its exit codes.
#include <pty.h>

#include <regex>
#include <set>

#include "cli_spawn.h"

namespace tilewise::cli {
namespace {

const char* const kCommands[] = {"demo", "run", "verify", "bench", "traffic", "explain", "info"};

class CliUsage : public CliTest {};

TEST_F(CliUsage, HelpListsCommandsAndExitCodes) {
  for (const char* flag : {"--help", "-h", "help"}) {
    const Finished help = tilewise({flag});
    EXPECT_EQ(help.code, 0);
    EXPECT_EQ(help.err, "");
    for (const char* command : kCommands) EXPECT_TRUE(holds(help.out, std::string("\n  ") + command + " "));
    for (int code = 0; code <= 7; ++code) EXPECT_TRUE(holds(help.out, "\n  " + std::to_string(code) + "  ")) << code;
    EXPECT_TRUE(holds(help.out, "Examples:"));
  }
}

TEST_F(CliUsage, EveryCommandHasHelpWithExamples) {
  for (const std::string command : kCommands) {
    const Finished help = tilewise({command, "--help"});
    EXPECT_EQ(help.code, 0) << command;
    EXPECT_TRUE(holds(help.out, "Usage: tilewise " + command)) << command;
    EXPECT_TRUE(holds(help.out, "Examples:\n  tilewise " + command)) << command;
    EXPECT_FALSE(holds(help.out, "\x1b")) << command;
    EXPECT_FALSE(holds(help.out, "\n\n\n")) << command;
  }
}

TEST_F(CliUsage, TheDocumentNamesEveryOption) {
  const std::string document = text_of(fs::path(TILEWISE_SOURCE) / "docs" / "cli.md");
  const std::regex option("\n  (?:-h,)?(--[a-z-]+)");
  for (const std::string command : kCommands) {
    const std::string help = tilewise({command, "--help"}).out;
    EXPECT_TRUE(holds(document, "## tilewise " + command)) << command;
    for (std::sregex_iterator at(help.begin(), help.end(), option), end; at != end; ++at) {
      const std::string name = (*at)[1];
      EXPECT_TRUE(holds(document, "`" + name)) << command << " " << name;
    }
  }
}

TEST_F(CliUsage, VersionIsTold) {
  const Finished version = tilewise({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_TRUE(std::regex_match(version.out, std::regex("tilewise [0-9]+\\.[0-9]+\\.[0-9]+\n"))) << version.out;
}

TEST_F(CliUsage, WrongArgumentsAreNamedWithTheirRule) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{}, "a command is needed"},
      {{"frobnicate"}, "no command 'frobnicate'"},
      {{"--frobnicate"}, "no command '--frobnicate'"},
      {{"rnu"}, "no command 'rnu'; did you mean run?"},
      {{"frobnicate"}, "there are demo, run, verify, bench, traffic, explain, info; see tilewise --help"},
      {{"bench", "--frobnicate"}, "unknown option '--frobnicate'; see tilewise bench --help"},
      {{"bench", "extra"}, "unexpected argument 'extra'; see tilewise bench --help"},
      {{"bench", "--kernal", "tiled"}, "unknown option '--kernal'; did you mean --kernel?"},
      {{"bench", "extra", "--kernal=tiled"}, "unknown option '--kernal'; did you mean --kernel?"},
      {{"run", "in.safetensors", "--casual"}, "unknown option '--casual'; did you mean --causal?"},
      {{"bench", "--heads"}, "--heads"},
      {{"bench", "--heads", "0"}, "--heads: 0 is less than 1"},
      {{"bench", "--heads", "-3"}, "--heads: -3 is less than 1"},
      {{"bench", "--heads", "x"}, "--heads: 'x' is not an integer"},
      {{"bench", "--heads", "4x"}, "--heads: '4x' is not an integer"},
      {{"bench", "--heads", "4.0"}, "--heads: '4.0' is not an integer"},
      {{"bench", "--heads", ""}, "--heads"},
      {{"bench", "--heads", "1,,2"}, "--heads: '1,,2' has an empty entry"},
      {{"bench", "--seqlen", "99999999999999999999"}, "overflows 64 bits"},
      {{"bench", "--seqlen", "9223372036854775807"}, "--seqlen: 9223372036854775807 is more than"},
      {{"bench", "--seqlen", "99999999999", "--heads", "99999999999"}, "overflows 64 bits"},
      {{"bench", "--dtype", "fp64"}, "--dtype: 'fp64' is not one of fp32, fp16, bf16"},
      {{"bench", "--pass", "sideways"}, "--pass: 'sideways' is not one of forward, backward"},
      {{"bench", "--layout", "sbhd"}, "--layout: 'sbhd' is not one of bshd, bhsd"},
      {{"bench", "--json", "--csv"}, "--json excludes --csv"},
      {{"bench", "--heads", "3", "--kv-heads", "2", "--seqlen", "8"},
       "bench: forward 8 x 8, head_dim 64: --heads 3 is not a multiple of --kv-heads 2"},
      {{"explain", "--heads", "8", "--kv-heads", "3"}, "--heads 8 is not a multiple of --kv-heads 3"},
      {{"traffic", "--heads", "8", "--kv-heads", "3"}, "--heads 8 is not a multiple of --kv-heads 3"},
      {{"bench", "--scale", "nan", "--seqlen", "8"}, "softmax_scale"},
      {{"bench", "--scale", "big"}, "--scale: 'big' is not a number"},
      {{"bench", "--dropout", "1.5", "--seqlen", "8"}, "dropout_p"},
      {{"explain", "--top-left", "--window-left", "-1"}, "--window-left: -1 is less than 0"},
      {{"bench", "--seqlen", "8", "--kernel", "tiled,nothing"}, "--kernel: no kernel is named 'nothing'"},
      {{"explain", "--kernel", "nothing"}, "--kernel: no kernel is named 'nothing'"},
      {{"verify", "--kernel", "nothing"}, "--kernel: no kernel is named 'nothing'"},
      {{"run", "--kernel", "nothing"}, "--kernel: no kernel is named 'nothing'"},
      {{"verify", "--first", "9223372036854775807"}, "--first: 9223372036854775807 is more than"},
      {{"run"}, "--query is not given, and there is no INPUT; give --query FILE.npy or a safetensors file"},
      {{"run", "--query", "q.npy", "--key", "k.npy"}, "--value is not given, and there is no INPUT"},
      {{"run", "--query", "q", "--key", "k.npy", "--value", "v.npy"}, "'q' is not an .npy file, so INPUT"},
  };
  for (const auto& [args, rule] : cases) {
    const Finished run = tilewise(args);
    std::string line;
    for (const std::string& arg : args) line += arg + " ";
    EXPECT_EQ(run.code, 2) << line << run.err;
    EXPECT_TRUE(holds(run.err, rule)) << line << "\n" << run.err;
    EXPECT_EQ(run.out, "") << line;
    EXPECT_EQ(run.err.rfind("tilewise", 0), 0u) << line << run.err;
  }
}

TEST_F(CliUsage, WhatIsTooLargeIsOutOfMemory) {
  const Finished run = tilewise({"bench", "--seqlen", "9999999999"});
  EXPECT_EQ(run.code, 6);
  EXPECT_TRUE(holds(run.err, "out of memory: q takes")) << run.err;
}

TEST_F(CliUsage, WhatNoKernelServesIsUnsupported) {
  for (const char* command : {"explain", "bench"}) {
    const Finished run = tilewise({command, "--seqlen", "8", "--head-dim", "600"});
    EXPECT_EQ(run.code, 5) << run.err;
    EXPECT_TRUE(holds(run.err, "--head-dim 600 is more than 512")) << run.err;
    EXPECT_FALSE(holds(run.err, ":  ")) << run.err;
  }
  const Finished unknown = tilewise({"explain"}, {.environment = {{"TILEWISE_FORCE_KERNEL", "nothing"}}});
  EXPECT_TRUE(holds(unknown.err, "`tilewise info`")) << unknown.err;
}

TEST_F(CliUsage, AFullDiskBehindStandardOutputIsAnError) {
  const Finished run = tilewise({"explain", "--json"}, {.out = "/dev/full"});
  EXPECT_EQ(run.code, 4);
  EXPECT_TRUE(holds(run.err, "standard output: cannot write")) << run.err;
}

TEST_F(CliUsage, ErrorsKeepTheirExitCodesWhereStandardErrorTakesNothing) {
  const std::pair<std::vector<std::string>, int> cases[] = {
      {{"frobnicate"}, 2},
      {{"bench", "--heads", "0"}, 2},
      {{"run", "gone", "--output", "o"}, 3},
      {{"explain", "--head-dim", "600"}, 5},
      {{"bench", "--seqlen", "8", "--head-dim", "600"}, 5},
      {{"bench", "--seqlen", "9999999999"}, 6},
  };
  for (const auto& [args, code] : cases) {
    EXPECT_EQ(tilewise(args, {.err = "/dev/full"}).code, code) << args[0];
    EXPECT_EQ(tilewise(args, {.err = kClosed}).code, code) << args[0];
  }
  for (const char* command : kCommands) {
    EXPECT_EQ(tilewise({command, "--help"}, {.out = "/dev/full", .err = "/dev/full"}).code, 4) << command;
    EXPECT_EQ(tilewise({command, "--help"}, {.out = kClosed, .err = kClosed}).code, 4) << command;
  }
  EXPECT_EQ(tilewise({"--help"}, {.out = "/dev/full"}).code, 4);
}

TEST_F(CliUsage, AnErrorIsOneLineThatCannotSteerTheTerminal) {
  const std::vector<std::string> cases[] = {{},
                                            {"new\nline"},
                                            {"bench", "--frob\nnicate"},
                                            {"bench", "extra\x1b[2J"},
                                            {"bench", "--seqlen", "8", "--head-dim", "600"},
                                            {"run", "gone\n\x1b[2J", "--output", "o"},
                                            {"run", "gone", "--output", "no\n\x1b/o"},
                                            {"run", "--query", "q\n.npy", "--output", "o"}};
  for (const std::vector<std::string>& args : cases) {
    const Finished run = tilewise(args);
    EXPECT_NE(run.code, 0);
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
    EXPECT_FALSE(holds(run.err, "\x1b")) << run.err;
    EXPECT_EQ(run.err.rfind("tilewise", 0), 0u) << run.err;
  }
}

TEST_F(CliUsage, SeedsHave64Bits) {
  for (const char* option : {"--dropout-seed", "--dropout-offset"}) {
    EXPECT_EQ(tilewise({"explain", "--dropout", "0.5", option, "18446744073709551615"}).code, 0) << option;
    for (const char* wrong : {"18446744073709551616", "-1", "", "1.0"}) {
      const Finished run = tilewise({"explain", option, wrong});
      EXPECT_EQ(run.code, 2) << option << " " << wrong;
      EXPECT_TRUE(holds(run.err, option)) << run.err;
    }
  }
}

TEST_F(CliUsage, TheMemoryThatCanBeHadIsThatOfTheProcess) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "ASan needs more address space than any limit leaves";
#endif
  const Finished run = tilewise({"bench", "--seqlen", "65536", "--heads", "16"}, {.address_space = 200 << 20});
  EXPECT_EQ(run.code, 6) << run.err;
  EXPECT_TRUE(std::regex_search(run.err, std::regex("[0-9.]+ MiB available"))) << run.err;
}

std::string on_terminal(const std::vector<const char*>& args) {
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    std::vector<char*> argv = {const_cast<char*>("tilewise")};
    for (const char* arg : args) argv.push_back(const_cast<char*>(arg));
    argv.push_back(nullptr);
    execv(TILEWISE_COMMAND, argv.data());
    _exit(127);
  }
  std::string text;
  char piece[4096];
  for (ssize_t got; (got = read(terminal, piece, sizeof piece)) > 0;) text.append(piece, static_cast<size_t>(got));
  waitpid(child, nullptr, 0);
  close(terminal);
  return text;
}

TEST_F(CliUsage, OnlyATerminalGetsBoldTextAndProgress) {
  const std::string shown = on_terminal({"bench", "--seqlen", "64", "--ms", "200"});
  EXPECT_TRUE(holds(shown, "\x1b[1m"));
  EXPECT_TRUE(holds(shown, "[##")) << shown;
  const Finished piped = tilewise({"bench", "--seqlen", "64", "--ms", "200"});
  EXPECT_FALSE(holds(piped.out, "\x1b"));
  EXPECT_EQ(piped.err, "");
}

}  // namespace
}  // namespace tilewise::cli
