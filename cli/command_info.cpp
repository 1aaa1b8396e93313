// tilewise info: the machine, and what each kernel serves on it.
#include <fmt/format.h>

#include "cli/buffer.h"
#include "cli/commands.h"
#include "cli/features.h"
#include "cli/table.h"
#include "cli/text.h"
#include "core/device.h"
#include "core/kernel.h"
#include "core/threads.h"

namespace tilewise::cli {
namespace {

constexpr const char* kNotes = R"(
Kernels are asked in this order; the first that accepts a problem serves it. Uses: `chosen` ones serve, a `fallback`
serves what those refuse, a `rung` is there for comparison and runs only when asked for by name.

Examples:
  tilewise info
  tilewise info --json)";

std::string isa_text(const Cpu& cpu) {
  if (cpu.avx512) return "AVX-512";
  return cpu.avx2 ? "AVX2" : "baseline";
}

const char* name_of(Rank rank) {
  switch (rank) {
    case Rank::chosen:
      return "chosen";
    case Rank::fallback:
      return "fallback";
    default:
      return "rung";
  }
}

Table kernel_table() {
  using enum Column::Place;
  const Cpu& cpu = this_cpu();
  Table table({{"kernel", "kernel", shown},
               {"pass", "pass", record},
               {"rank", "use", shown},
               {"runs_here", "runs here", shown},
               {"why_not", "why not", caption},
               {"refuses", "refuses", shown},
               {"device", "device", record},
               {"isa", "isa", record},
               {"cores", "cores", record},
               {"l1_bytes", "L1", record},
               {"l2_bytes", "L2", record},
               {"l3_bytes", "L3", record}});
  for (const Kernel* kernel : kernels()) {
    Text why_not;
    const bool runs = kernel->runs_on(0, why_not);
    const std::string refused = refused_features(*kernel);
    table.add({std::string(kernel->name), std::string(tilewise::name_of(kernel->pass)),
               std::string(name_of(kernel->rank)), runs, runs ? Cell() : Cell(std::string(why_not.chars)),
               refused.empty() ? Cell() : Cell(refused), std::string(cpu.model), isa_text(cpu),
               int64_t{available_cores()}, cpu.l1_bytes, cpu.l2_bytes, cpu.l3_bytes});
  }
  return table;
}

std::string machine_text() {
  const Cpu& cpu = this_cpu();
  const auto cache = [](int64_t bytes) { return bytes > 0 ? size_text(bytes) : std::string("unknown"); };
  std::string text = fmt::format("{:<10}{}, {} cores for this process\n", "cpu", cpu.model, available_cores());
  text += fmt::format("{:<10}{}\n", "isa", isa_text(cpu));
  text += fmt::format("{:<10}L1 {}, L2 {}, L3 {}\n", "caches", cache(cpu.l1_bytes), cache(cpu.l2_bytes),
                      cache(cpu.l3_bytes));
  text += fmt::format("{:<10}{} can be had\n", "memory", size_text(memory_available()));
  return text + fmt::format("{:<10}not in this build\n\n", "cuda");
}

Action declare_info(Arguments& arguments) {
  const auto json = std::make_shared<bool>(false);
  arguments.flag("--json", *json, "one list of rows, one a kernel");
  return [json] {
    const Table table = kernel_table();
    if (!*json) fmt::print("{}", machine_text());
    fmt::print("{}", table.render(*json ? Format::json : Format::text));
    return ExitCode::ok;
  };
}

}  // namespace

const Command kInfo = {"info", "the machine, and what each kernel serves", kNotes, declare_info};

}  // namespace tilewise::cli
