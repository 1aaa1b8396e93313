// tilewise run: attention on tensors from files.
#include <fmt/format.h>

#include <map>

#include "cli/commands.h"
#include "cli/peak_memory.h"
#include "cli/prepared.h"
#include "cli/run_files.h"
#include "cli/standard_streams.h"
#include "cli/stopwatch.h"
#include "cli/table.h"
#include "cli/tensors.h"

namespace tilewise::cli {
namespace {

constexpr const char* kNotes = R"(
A tensor is given as NAME, its name in INPUT (a safetensors file), or as an .npy file. Types: fp32, fp16 and, in
safetensors, bf16. q (batch, seqlen, heads, head_dim), k and v (batch, seqlen, kv_heads, head_dim) in the order of
--layout; batch may be left out of all of them. bias (batch|1, heads|1, seqlen_q|1, seqlen_k|1), leading axes may be
left out; alibi slopes (heads) or (batch, heads); sink (heads).

With --dout the gradients are computed, too. --output writes out, lse and, with --dout, dq, dk, dv into one safetensors
file; --out, --lse, --dq, --dk, --dv write one .npy file each. Files appear whole or not at all.

Examples:
  tilewise run layer.safetensors --causal --output result.safetensors
  tilewise run model.safetensors --query h.0.q --key h.0.k --value h.0.v --window-left 511 --output o.safetensors
  tilewise run --query q.npy --key k.npy --value v.npy --layout bhsd --out out.npy --lse lse.npy
  tilewise run layer.safetensors --dout dout --causal --kernel v1 --output grads.safetensors)";

class Run {
 public:
  explicit Run(const RunOptions& options) : o_(options), inputs_(options), outputs_(options) {
    check_output_types();
    take_problem();
  }

  ExitCode run() {
    const PeakMemory peak;
    compute(nullptr);
    if (inputs_.has("dout")) compute(&grad_);
    const std::optional<int64_t> peak_bytes = peak.growth();
    const NamedArrays results = wanted_results();
    const std::string told = report(results, peak_bytes);  // before anything is replaced: it may run out of memory
    outputs_.write(results);
    write_output(told);
    return ExitCode::ok;
  }

 private:
  NamedArrays wanted_results() const {
    NamedArrays wanted;
    for (const char* role : {"out", "lse", "dq", "dk", "dv"}) {
      const auto found = results_.find(role);
      if (found != results_.end() && outputs_.wants(role)) wanted.emplace_back(role, &found->second);
    }
    return wanted;
  }

  Type out_dtype() const { return o_.out_dtype == "fp32" ? Type::f32 : inputs_.array("q").dtype; }

  void check_output_types() const {
    const bool npy = !o_.out.empty() || !o_.dq.empty() || !o_.dk.empty() || !o_.dv.empty();
    if (npy && out_dtype() == Type::bf16) {
      fail(ExitCode::usage, "--out-dtype: npy has no bf16; give fp32, or --output FILE.safetensors");
    }
  }

  void take_problem() {
    const Layout layout = layout_named(o_.layout);
    TW_INIT(attention_);
    attention_.device_type = TW_CPU;
    attention_.threads = static_cast<int32_t>(o_.threads);
    attention_.q = inputs_.sequence("q", layout);
    attention_.k = inputs_.sequence("k", layout);
    attention_.v = inputs_.sequence("v", layout);
    attention_.bias = inputs_.trailing("bias", 4);
    attention_.alibi_slopes = inputs_.trailing("alibi_slopes", 2);
    attention_.sink = inputs_.trailing("sink", 1);
    apply(o_.scores, attention_);
    const Array& q = inputs_.array("q");
    const Array& out = result("out", result_like("out", q, out_dtype(), attention_.v.shape[3]));
    attention_.out = sequence_view("out", out, layout);
    attention_.lse = trailing_view("lse", result("lse", lse_for(q, attention_.q)), 3);

    if (!inputs_.has("dout")) return;
    TW_INIT(grad_);
    grad_.dout = inputs_.sequence("dout", layout);
    const auto gradient = [&](const char* name, const char* of, tw_tensor& view) {
      if (!outputs_.wants(name)) return;
      const Array& like = inputs_.array(of);
      view = sequence_view(name, result(name, result_like(name, like, out_dtype(), like.shape.back())), layout);
    };
    gradient("dq", "q", grad_.dq);
    gradient("dk", "k", grad_.dk);
    gradient("dv", "v", grad_.dv);
  }

  const Array& result(const char* role, Array array) { return results_.emplace(role, std::move(array)).first->second; }

  void compute(const tw_attention_grad* grad) {
    Problem problem;
    check(make_problem(attention_, grad, true, problem));
    PlanOptions options;
    options.force = o_.kernel.empty() ? nullptr : o_.kernel.c_str();
    options.fast_memory = o_.fast_memory.value_or(0);
    const Prepared prepared(problem, options);
    const Stopwatch stopwatch(false);
    prepared.run();
    steps_.push_back({prepared.plan(), problem, stopwatch.seconds() * 1e3});
  }

  std::string report(const NamedArrays& results, std::optional<int64_t> peak_bytes) const {
    using enum Column::Place;
    Table table(joined<Column>({{"kernel", "kernel", shown},
                                {"pass", "pass", record},
                                {"dtype", "dtype", caption},
                                {"layout", "layout", caption}},
                               size_columns(),
                               {{"threads", "threads", caption},
                                {"ms", "ms, first run", shown, as_time},
                                {"workspace_bytes", "workspace", shown, as_size},
                                {"peak_bytes", "peak memory", shown, as_size}}));
    for (const Step& step : steps_) {
      const Problem& p = step.problem;
      table.add(joined<Cell>(
          {std::string(step.plan.kernel->name), std::string(name_of(p.pass)), std::string(name_of(p.type)), o_.layout},
          size_cells(shape_of(p), p.causal),
          {int64_t{step.plan.settings.workers}, step.ms, static_cast<int64_t>(step.plan.sizing.workspace_bytes),
           cell_of(peak_bytes)}));
    }
    if (o_.json) return table.render(Format::json);
    std::string what;
    for (const auto& [role, array] : results) {
      what +=
          fmt::format("{}{} {} {}", what.empty() ? "" : ", ", role, shape_text(array->shape), name_of(array->dtype));
    }
    const std::string paths = printable(fmt::format("{}", fmt::join(outputs_.paths(), ", ")));
    return fmt::format("{}wrote {}: {}\n", table.render(Format::text), paths, what);
  }

  struct Step {
    Plan plan;
    Problem problem;
    double ms;
  };

  const RunOptions& o_;
  RunInputs inputs_;
  RunOutputs outputs_;
  tw_attention attention_ = {};
  tw_attention_grad grad_ = {};
  std::map<std::string, Array> results_;
  std::vector<Step> steps_;
};

Action declare_run(Arguments& arguments) {
  const auto o = std::make_shared<RunOptions>();
  arguments.text("input", o->input, "INPUT", "safetensors file that holds the tensors given by name");
  arguments.group("Inputs");
  arguments.text("--query", o->query, "NAME", "queries [q]");
  arguments.text("--key", o->key, "NAME", "keys [k]");
  arguments.text("--value", o->value, "NAME", "values [v]");
  arguments.text("--dout", o->dout, "NAME", "gradient of out: compute gradients, too");
  arguments.text("--bias", o->bias, "NAME", "added to the scores");
  arguments.text("--alibi-slopes", o->alibi_slopes, "NAME", "one slope a head");
  arguments.text("--sink", o->sink, "NAME", "one more logit a head, in the denominator only");
  arguments.choice("--layout", o->layout, {"bshd", "bhsd"}, "order of the axes in memory");
  arguments.group("Outputs");
  arguments.text("--output", o->output, "FILE", "safetensors file for all results");
  arguments.text("--out", o->out, "FILE", ".npy file for out");
  arguments.text("--lse", o->lse, "FILE", ".npy file for lse, the log of the sum of exp of the scores");
  arguments.text("--dq", o->dq, "FILE", ".npy file for the gradient of q");
  arguments.text("--dk", o->dk, "FILE", ".npy file for the gradient of k");
  arguments.text("--dv", o->dv, "FILE", ".npy file for the gradient of v");
  arguments.choice("--out-dtype", o->out_dtype, {"same", "fp32"}, "type of out and gradients: that of q, or fp32");
  arguments.flag("--json", o->json, "print one list of rows");
  declare(arguments, o->scores);
  arguments.group("How");
  arguments.text("--kernel", o->kernel, "NAME", "kernel, by parts of its name [the one that a call gets]");
  arguments.integer("--threads", o->threads, {0, kMostThreads}, "threads, 0 = all cores");
  arguments.integer("--fast-memory", o->fast_memory, kExtent, "M of standard and v1, fp32 elements [L2 / 4]");
  return [o] {
    check_kernel_option(o->kernel);
    return Run(*o).run();
  };
}

}  // namespace

const Command kRun = {"run", "attention on tensors from files", kNotes, declare_run};

}  // namespace tilewise::cli
