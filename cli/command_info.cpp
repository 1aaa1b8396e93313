// tilewise info: the machine, and what each kernel serves on it.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/buffer.h"
#include "cli/commands.h"
#include "cli/standard_streams.h"
#include "cli/table.h"
#include "cli/text.h"
#include "tilewise/tilewise.h"

namespace tilewise::cli {
namespace {

using Json = nlohmann::json;

constexpr const char* kUses = R"(
Kernels are asked in this order; the first that accepts a problem serves it: a chosen one serves what those above it
refuse, a fallback what all chosen ones refuse; a rung is there for comparison and runs only when asked for by name.
)";

constexpr const char* kNotes = R"(
Examples:
  tilewise info
  tilewise info --json)";

// What the library says of itself and the machine.
Json library_info() {
  std::string text(tw_info(nullptr, 0) + 1, '\0');
  tw_info(text.data(), text.size());
  return Json::parse(text.c_str());
}

// The instruction sets for which there is code, best first: which one is taken, and why another is not.
std::string isas_text(const Json& info) {
  std::string text, taken;
  for (const Json& kernel : info["kernels"]) {
    if (kernel["rank"] != "chosen" || kernel["pass"] != "forward" || kernel["isa"] == "cuda") continue;
    const std::string isa = kernel["isa"];
    const bool available = kernel["available"].get<bool>();
    const std::string verdict = !available      ? "no: " + kernel["why_not"].get<std::string>()
                                : taken.empty() ? "taken"
                                                : fmt::format("runs here; {} comes first", taken);
    if (available && taken.empty()) taken = isa;
    text += fmt::format("{:<10}{:<10}{}\n", text.empty() ? "isa" : "", isa, verdict);
  }
  return text;
}

Cell text_cell(const Json& value) { return value.is_null() ? Cell() : Cell(value.get<std::string>()); }

Cell list_cell(const Json& list) {
  return list.empty() ? Cell() : Cell(fmt::format("{}", fmt::join(list.get<std::vector<std::string>>(), ", ")));
}

Table kernel_table(const Json& info) {
  using enum Column::Place;
  Table table({{"kernel", "kernel", shown},
               {"pass", "pass", record},
               {"rank", "use", shown},
               {"available", "runs here", shown},
               {"why_not", "why not", caption},
               {"refuses", "refuses", shown},
               {"device", "device", record},
               {"isa", "isa", record},
               {"cores", "cores", record},
               {"l1_bytes", "L1", record},
               {"l2_bytes", "L2", record},
               {"l3_bytes", "L3", record}});
  const Json& cpu = info["cpu"];
  const auto number = [&](const char* key) { return Cell(cpu[key].get<int64_t>()); };
  for (const Json& kernel : info["kernels"]) {
    table.add({text_cell(kernel["name"]), text_cell(kernel["pass"]), text_cell(kernel["rank"]),
               kernel["available"].get<bool>(), text_cell(kernel["why_not"]), list_cell(kernel["refuses"]),
               text_cell(cpu["model"]), text_cell(kernel["isa"]), number("cores"), number("l1_bytes"),
               number("l2_bytes"), number("l3_bytes")});
  }
  return table;
}

std::string gpu_text(const Json& gpu) {
  const int capability = gpu["compute_capability"];
  return fmt::format("{:<10}{}, compute capability {}.{}, {} multiprocessors, {}\n",
                     fmt::format("gpu {}", gpu["index"].get<int>()), gpu["name"].get<std::string>(), capability / 10,
                     capability % 10, gpu["multiprocessors"].get<int>(), size_text(gpu["memory_bytes"].get<int64_t>()));
}

std::string machine_text(const Json& info) {
  const Json& cpu = info["cpu"];
  const auto cache = [&](const char* key) {
    const int64_t bytes = cpu[key];
    return bytes > 0 ? size_text(bytes) : std::string("unknown");
  };
  std::string text = fmt::format("{:<10}{}, {} cores for this process\n", "cpu", cpu["model"].get<std::string>(),
                                 cpu["cores"].get<int64_t>());
  text += isas_text(info);
  text += fmt::format("{:<10}L1 {}, L2 {}, L3 {}\n", "caches", cache("l1_bytes"), cache("l2_bytes"), cache("l3_bytes"));
  text += fmt::format("{:<10}{} available\n", "memory", size_text(memory_available()));
  for (const Json& gpu : info["gpus"]) text += gpu_text(gpu);
  for (const Json& backend : info["backends"]) {
    if (backend["available"].get<bool>()) continue;
    text += fmt::format("{:<10}{}\n", backend["name"].get<std::string>(), backend["reason"].get<std::string>());
  }
  return text + "\n";
}

Action declare_info(Arguments& arguments) {
  const auto json = std::make_shared<bool>(false);
  arguments.flag("--json", *json, "one list of rows, one a kernel");
  return [json] {
    const Json info = library_info();
    if (!*json) write_output(machine_text(info));
    write_output(kernel_table(info).render(*json ? Format::json : Format::text));
    if (!*json) write_output(kUses);
    return ExitCode::ok;
  };
}

}  // namespace

const Command kInfo = {"info", "the machine, and what each kernel serves", kNotes, declare_info};

}  // namespace tilewise::cli
