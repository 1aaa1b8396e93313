// tilewise explain: which kernel a problem gets, with what tiles and workspace, and why each other does not serve it.
#include "cli/commands.h"
#include "cli/prepared.h"
#include "cli/shape.h"
#include "cli/standard_streams.h"
#include "cli/table.h"
#include "cli/text.h"
#include "core/plan.h"

namespace tilewise::cli {
namespace {

struct ExplainOptions {
  ShapeOptions shape;
  ScoreOptions scores;
  std::string kernel;
  std::optional<int64_t> fast_memory;
  bool json = false;
};

constexpr const char* kNotes = R"(
Kernels are asked in the order of the table; the first that accepts is chosen. `standard` and `v1` are there for
comparison and run only when asked for by name.

Columns: what becomes of the kernel; workers, tasks at once; rows and keys of a tile; workspace, memory besides the
tensors; why it is not chosen. With --json also chunk_keys, the keys whose dk and dv a task of the backward makes.

Examples:
  tilewise explain --heads 32 --kv-heads 8 --seqlen 4096 --head-dim 128 --causal
  tilewise explain --pass backward --dtype bf16 --window-left 511
  tilewise explain --kernel v1 --softcap 30 --json)";

// What becomes of one kernel of the table.
struct Verdict {
  const Kernel* kernel;
  std::string decision, reason;
  Plan plan;  // if it serves the problem
  bool serves;
};

std::vector<Verdict> verdicts_on(const Problem& problem, const PlanOptions& options) {
  std::vector<Verdict> verdicts;
  const char* const force = forced_kernel(options);
  bool chosen = false;
  for (const Kernel* kernel : kernels(problem.device_type)) {
    if (kernel->pass != problem.pass) continue;
    const bool named = force && names_kernel(force, kernel->name);
    Verdict verdict{kernel, "refuses", refusal_of(*kernel, problem, true).chars, {}, false};
    if (verdict.reason.empty()) {
      PlanOptions own = options;
      own.force = kernel->name;
      check(make_plan(problem, own, verdict.plan));
      verdict.serves = true;
      const std::string unforced = refusal_of(*kernel, problem, named).chars;
      const bool asked = unforced.empty() && (!force || named);
      verdict.decision = asked && !chosen ? "chosen" : asked ? "would serve" : "when named";
      if (!unforced.empty()) verdict.reason = unforced;
      chosen = chosen || asked;
    }
    verdicts.push_back(std::move(verdict));
  }
  return verdicts;
}

Table table_of(const std::vector<Verdict>& verdicts) {
  using enum Column::Place;
  Table table({{"kernel", "kernel", shown},
               {"decision", "", shown},
               {"workers", "workers", shown},
               {"query_rows", "rows", shown, as_count},
               {"keys", "keys", shown, as_count},
               {"chunk_keys", "chunk", record, as_count},
               {"workspace_bytes", "workspace", shown, as_size},
               {"reason", "why", shown}});
  for (const Verdict& v : verdicts) {
    const auto given = [&](int64_t number) { return v.serves && number > 0 ? Cell(number) : Cell(); };
    table.add({std::string(v.kernel->name), v.decision, given(v.plan.settings.workers), given(v.plan.sizing.query_rows),
               given(v.plan.sizing.keys), given(v.plan.sizing.chunk_keys),
               v.serves ? Cell(static_cast<int64_t>(v.plan.sizing.workspace_bytes)) : Cell(), v.reason});
  }
  return table;
}

ExitCode explain(const ExplainOptions& o) {
  check_kernel_option(o.kernel);
  const Shape shape = o.shape.shape();
  check_options(shape);
  const Problem problem = planned_problem(describe(shape, o.scores));
  PlanOptions options;
  options.force = o.kernel.empty() ? nullptr : o.kernel.c_str();
  options.fast_memory = o.fast_memory.value_or(0);
  Plan plan;
  const Status status = make_plan(problem, options, plan);
  if (status.code != TW_UNSUPPORTED) check(status);
  write_output(table_of(verdicts_on(problem, options)).render(o.json ? Format::json : Format::text));
  check(status);  // the table shows why nothing serves the problem
  return ExitCode::ok;
}

Action declare_explain(Arguments& arguments) {
  const auto o = std::make_shared<ExplainOptions>();
  declare(arguments, o->shape);
  declare(arguments, o->scores);
  arguments.group("Planning");
  arguments.text("--kernel", o->kernel, "NAME", "ask for a kernel by parts of its name");
  arguments.integer("--fast-memory", o->fast_memory, kExtent, "M of standard and v1, fp32 elements [L2 / 4]");
  arguments.group("Output");
  arguments.flag("--json", o->json, "one list of rows");
  return [o] { return explain(*o); };
}

}  // namespace

const Command kExplain = {"explain", "which kernel a problem gets, and why the others do not", kNotes, declare_explain};

}  // namespace tilewise::cli
