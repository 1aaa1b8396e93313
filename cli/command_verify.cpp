// tilewise verify: random legal problems of every feature against the fp64 oracle.
#include <fmt/format.h>

#include "cases/verify.h"
#include "cli/commands.h"
#include "cli/format_options.h"
#include "cli/prepared.h"
#include "cli/progress.h"
#include "cli/shape.h"
#include "cli/standard_streams.h"
#include "cli/text.h"
#include "core/kernel.h"

namespace tilewise::cli {
namespace {

struct VerifyCommandOptions {
  std::string kernel, device = "cpu";
  int64_t count = 200, seed = 1, first = 0, threads = 0;
  FormatOptions format;
};

constexpr int64_t kMostProblems = 100'000'000;

constexpr const char* kNotes = R"(
Draws legal problems at random (types, layouts, lengths, masks, biases, dropout, gradients, ..) until N of them have
run, and compares each output with attention in double precision. Allowed is what docs/contract.md (C8) says: twice
the error of standard attention in the same type, and a rounding. The table shows, for each output, the largest share
of that allowance that any problem took: above 1 is a failure.

Exit code 1: a result is wrong, or more than a tenth of the problems were refused (half for v1, which serves less).

Examples:
  tilewise verify
  tilewise verify --kernel v1 --count 1000 --seed 7
  tilewise verify --device cuda
  tilewise verify --seed 7 --first 412 --count 1          runs problem 412 of seed 7 again)";

// More than a kernel may that serves what the contract describes.
bool refuses_too_much(const cases::VerifyReport& report, const std::string& kernel) {
  const int64_t least = names_kernel("v1", kernel.c_str()) ? 2 : 10;
  return report.refused * least > report.drawn;
}

Table table_of(const cases::VerifyReport& report, const VerifyCommandOptions& o) {
  using enum Column::Place;
  Table table({{"output", "output", shown},
               {"worst_ratio", "worst share", shown},
               {"index", "problem", shown},
               {"problem", "", record},
               {"kernel", "kernel", record},
               {"seed", "seed", record},
               {"drawn", "drawn", record},
               {"run", "run", record},
               {"refused", "refused", record},
               {"failed", "failed", record}});
  for (const auto& [output, worst] : report.worst) {
    table.add({output, worst.ratio, worst.index, worst.name, o.kernel.empty() ? Cell() : Cell(o.kernel), o.seed,
               report.drawn, report.run, report.refused, report.failed});
  }
  return table;
}

void complain_of_failures(const cases::VerifyReport& report, const VerifyCommandOptions& o) {
  const std::string kernel = o.kernel.empty() ? "" : " --kernel " + o.kernel;
  for (const cases::VerifyFailure& failure : report.failures) {
    complain(fmt::format("{}: {}; problem: {}; again: tilewise verify --seed {} --first {} --count 1{} --device {}",
                         failure.kernel, failure.what, failure.name, o.seed, failure.index, kernel, o.device));
  }
}

void print_summary(const cases::VerifyReport& report) {
  print("{} problems drawn, {} run, {} wrong, {} refused\n", count_text(report.drawn), count_text(report.run),
        count_text(report.failed), count_text(report.refused));
  for (const auto& [rule, count] : report.refusals) print("  {:>6} refused: {}\n", count_text(count), rule);
}

ExitCode verify(const VerifyCommandOptions& o) {
  cases::VerifyOptions options;
  options.kernel = o.kernel.empty() ? nullptr : o.kernel.c_str();
  options.count = o.count, options.first = o.first;
  options.seed = static_cast<uint64_t>(o.seed), options.threads = static_cast<int>(o.threads);
  check_kernel_option(o.kernel);
  const Device device = device_named(o.device);
  if (device.index != 0) fail(ExitCode::usage, "--device: {} is not cuda:0; problems are verified on GPU 0", o.device);
  if (device.is_gpu()) check(check_gpu(0));
  options.device_type = device.type;
  Progress progress(o.count);
  const cases::VerifyReport report = cases::verify(options, [&](const cases::VerifyReport& so_far) {
    progress.show(so_far.run, fmt::format("problems, {} wrong", so_far.failed));
  });
  progress.clear();
  complain_of_failures(report, o);
  const bool too_few = refuses_too_much(report, o.kernel);
  if (too_few) complain(fmt::format("{} of {} problems were refused", report.refused, report.drawn));
  if (o.format.format() == Format::text) print_summary(report);
  write_output(table_of(report, o).render(o.format.format()));
  return report.failed > 0 || too_few ? ExitCode::check_failed : ExitCode::ok;
}

Action declare_verify(Arguments& arguments) {
  const auto o = std::make_shared<VerifyCommandOptions>();
  arguments.text("--kernel", o->kernel, "NAME", "kernel, by parts of its name [the one that each problem gets]");
  arguments.integer("--count", o->count, {1, kMostProblems}, "problems to run");
  arguments.integer("--seed", o->seed, {0, INT64_MAX}, "of the random problems");
  arguments.integer("--first", o->first, {0, INT64_MAX - cases::kMostDraws * kMostProblems},
                    "problem of the seed to start with");
  arguments.integer("--threads", o->threads, {0, kMostThreads}, "threads, 0 = as each problem says");
  arguments.text("--device", o->device, "DEVICE", "where to compute: cpu or cuda");
  declare(arguments, o->format);
  return [o] { return verify(*o); };
}

}  // namespace

const Command kVerify = {"verify", "random problems of every feature against the fp64 oracle", kNotes, declare_verify};

}  // namespace tilewise::cli
