// tilewise bench: kernels x shapes, timed.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "cli/commands.h"
#include "cli/measure.h"
#include "cli/peak_memory.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "cli/workload.h"

namespace tilewise::cli {
namespace {

struct BenchOptions {
  std::vector<std::string> kernels, passes = {"forward"}, dtypes = {"fp32"}, layouts = {"bshd"};
  std::vector<int64_t> batch = {1}, heads = {4}, kv_heads, seqlen = {2048}, seqlen_q, seqlen_k;
  std::vector<int64_t> head_dim = {64}, head_dim_v, threads = {0};
  ScoreOptions scores;
  int64_t milliseconds = 500, runs = 3, seed = 1;
  std::optional<int64_t> fast_memory;
  bool check = false, json = false, csv = false;
};

constexpr const char* kNotes = R"(
Every list makes the table longer: all kernels on all shapes. Kernels take turns, with a probe of the machine's fused
multiply-add rate between any two runs. One thread is timed by its CPU time, more by the clock.

Columns (--json and --csv have all of them, under fixed names):
  ms, p10, p90     median of the runs, tenth and ninetieth percentile
  GFLOP/s          of the products over live pairs: 4 * head_dim a pair forward, 10 * head_dim backward
  % peak           of the FMA rate measured beside each run, with the kernel's own instruction set; median
  moved            bytes between slow and fast memory, by the model (`tilewise traffic`)
  workspace        what the plan asks for
  peak memory      growth of the process while the first run touched workspace and outputs
  max error        max |x - fp64| / max |fp64|, the worst of the outputs (--check)

Examples:
  tilewise bench --seqlen 512,2048,8192 --head-dim 64,128 --causal
  tilewise bench --kernel tiled,standard,v1 --pass forward,backward --threads 1
  tilewise bench --kernel tiled.portable,tiled.avx2 --dtype fp32,fp16,bf16 --check
  tilewise bench --heads 16 --kv-heads 4 --layout bshd,bhsd --json > bench.json)";

// Optional lists stand for the value that another option has.
std::vector<int64_t> or_else(const std::vector<int64_t>& list, int64_t otherwise) {
  return list.empty() ? std::vector{otherwise} : list;
}

std::vector<std::pair<int64_t, int64_t>> seqlens_of(const BenchOptions& o) {
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (const int64_t both : o.seqlen) {
    for (const int64_t q : or_else(o.seqlen_q, both)) {
      for (const int64_t k : or_else(o.seqlen_k, both)) {
        if (std::find(pairs.begin(), pairs.end(), std::pair(q, k)) == pairs.end()) pairs.emplace_back(q, k);
      }
    }
  }
  return pairs;
}

std::vector<Shape> shapes_of(const BenchOptions& o) {
  std::vector<Shape> shapes(1);
  // Each list in turn multiplies the shapes so far.
  const auto vary = [&](const auto& values, const auto& set) {
    std::vector<Shape> more;
    for (const Shape& shape : shapes) {
      for (const auto& value : values(shape)) set(more.emplace_back(shape), value);
    }
    shapes = std::move(more);
  };
  const auto always = [](const auto& list) { return [&list](const Shape&) { return list; }; };
  const auto pairs = seqlens_of(o);
  vary(always(o.passes), [](Shape& s, const std::string& name) { s.pass = pass_named(name); });
  vary(always(o.dtypes), [](Shape& s, const std::string& name) { s.dtype = type_named(name); });
  vary(always(o.layouts), [](Shape& s, const std::string& name) { s.layout = layout_named(name); });
  vary(always(o.threads), [](Shape& s, int64_t n) { s.threads = n; });
  vary(always(o.batch), [](Shape& s, int64_t n) { s.batch = n; });
  vary(always(o.heads), [](Shape& s, int64_t n) { s.heads = n; });
  vary([&](const Shape& s) { return or_else(o.kv_heads, s.heads); }, [](Shape& s, int64_t n) { s.kv_heads = n; });
  vary(always(o.head_dim), [](Shape& s, int64_t n) { s.head_dim = n; });
  vary([&](const Shape& s) { return or_else(o.head_dim_v, s.head_dim); },
       [](Shape& s, int64_t n) { s.head_dim_v = n; });
  vary(always(pairs), [](Shape& s, auto pair) { s.seqlen_q = pair.first, s.seqlen_k = pair.second; });
  return shapes;
}

Table bench_table() {
  using enum Column::Place;
  return Table({{"kernel", "kernel", shown},
                {"pass", "pass", record},
                {"dtype", "dtype", caption},
                {"layout", "layout", caption},
                {"batch", "batch", caption, as_count},
                {"heads", "heads", caption, as_count},
                {"kv_heads", "kv_heads", caption, as_count},
                {"seqlen_q", "seqlen_q", caption, as_count},
                {"seqlen_k", "seqlen_k", caption, as_count},
                {"head_dim", "head_dim", caption, as_count},
                {"head_dim_v", "head_dim_v", caption, as_count},
                {"causal", "causal", caption},
                {"threads", "threads", caption, as_count},
                {"ms_median", "ms", shown, as_time},
                {"ms_min", "min", record, as_time},
                {"ms_p10", "p10", shown, as_time},
                {"ms_p90", "p90", shown, as_time},
                {"gflops", "GFLOP/s", shown, as_decimal},
                {"percent_of_peak", "% peak", shown, as_decimal},
                {"bytes_model", "moved", shown, as_size},
                {"bytes_counted", "counted", caption, as_size},
                {"workspace_bytes", "workspace", shown, as_size},
                {"peak_bytes", "peak memory", shown, as_size},
                {"max_error", "max error", caption, as_error},
                {"runs", "runs", record}});
}

// A call that has run once, and what that first run told.
struct Contender {
  Call call;
  std::optional<int64_t> peak_bytes;
  std::optional<double> max_error;
};

class Bench {
 public:
  explicit Bench(const BenchOptions& options) : options_(options), shapes_(shapes_of(options)) {
    if (options_.kernels.empty()) options_.kernels = {""};
  }

  ExitCode run() {
    Progress progress(kSteps * static_cast<int64_t>(shapes_.size()));
    for (size_t i = 0; i < shapes_.size(); ++i) {
      const auto step = [&](double done) {
        progress.show(static_cast<int64_t>(kSteps * (static_cast<double>(i) + done)), title_of(shapes_[i]));
      };
      try {
        measure_shape(shapes_[i], step);
      } catch (const Failure& failure) {
        note(progress, title_of(shapes_[i]), failure);
      }
      for (const auto& [name, failure] : std::exchange(failures_, {})) note(progress, name, failure);
    }
    progress.clear();
    const Format format = options_.json ? Format::json : options_.csv ? Format::csv : Format::text;
    if (!table_.empty() || format != Format::text) fmt::print("{}", table_.render(format));
    return code_;
  }

 private:
  static constexpr int64_t kSteps = 20;  // of the bar, a shape

  static std::string title_of(const Shape& s) {
    return fmt::format("{} {} x {}, head_dim {}", name_of(s.pass), s.seqlen_q, s.seqlen_k, s.head_dim);
  }

  // What cannot run is said, and the rest goes on; the exit code tells.
  void note(Progress& progress, const std::string& what, const Failure& failure) {
    progress.clear();
    fmt::print(stderr, "tilewise bench: {}: {}\n", what, failure.what());
    if (code_ == ExitCode::ok) code_ = failure.code;
  }

  void measure_shape(const Shape& shape, const std::function<void(double)>& step) {
    step(0);
    Workload workload(shape, options_.scores);
    workload.fill_randomly(static_cast<uint64_t>(options_.seed));
    std::optional<Call> oracle;
    if (options_.check) oracle = Call::oracle(workload, shape.pass);
    std::vector<Contender> contenders;
    for (const std::string& kernel : options_.kernels) {
      try {
        contenders.push_back(first_run(workload, kernel, oracle ? &*oracle : nullptr));
      } catch (const Failure& failure) {
        failures_.emplace_back(fmt::format("{} {}", kernel, title_of(shape)), failure);
      }
    }
    std::vector<const Call*> calls;
    for (const Contender& contender : contenders) calls.push_back(&contender.call);
    const Effort effort{static_cast<double>(options_.milliseconds) * 1e-3, options_.runs};
    const std::vector<Timing> timings = measure(calls, effort, step);
    for (size_t i = 0; i < contenders.size(); ++i) add_row(shape, contenders[i], timings[i]);
  }

  Contender first_run(const Workload& workload, const std::string& kernel, const Call* oracle) const {
    PlanOptions plan;
    plan.force = kernel.empty() ? nullptr : kernel.c_str();
    plan.fast_memory = options_.fast_memory.value_or(0);
    Contender contender{Call(workload, workload.shape.pass, plan), {}, {}};
    const PeakMemory peak;
    contender.call.run();
    contender.peak_bytes = peak.growth();
    if (oracle) contender.max_error = worst_error(contender.call, *oracle);
    return contender;
  }

  void add_row(const Shape& s, const Contender& contender, const Timing& timing) {
    const Prepared& prepared = contender.call.prepared();
    const double ms = median(timing.ms);
    table_.add({std::string(prepared.plan().kernel->name),
                std::string(name_of(s.pass)),
                std::string(name_of(s.dtype)),
                std::string(name_of(s.layout)),
                s.batch,
                s.heads,
                s.kv_heads,
                s.seqlen_q,
                s.seqlen_k,
                s.head_dim,
                s.head_dim_v,
                options_.scores.causal,
                int64_t{prepared.plan().settings.workers},
                ms,
                quantile(timing.ms, 0),
                quantile(timing.ms, 0.1),
                quantile(timing.ms, 0.9),
                flops(prepared.problem()) / ms * 1e-6,
                100 * median(timing.of_peak),
                Cell(),
                Cell(),
                static_cast<int64_t>(prepared.plan().sizing.workspace_bytes),
                cell_of(contender.peak_bytes),
                cell_of(contender.max_error),
                static_cast<int64_t>(timing.ms.size())});
  }

  BenchOptions options_;
  std::vector<Shape> shapes_;
  Table table_ = bench_table();
  std::vector<std::pair<std::string, Failure>> failures_;
  ExitCode code_ = ExitCode::ok;
};

Action declare_bench(Arguments& arguments) {
  const auto o = std::make_shared<BenchOptions>();
  arguments.group("What to time");
  arguments.texts("--kernel", o->kernels, "NAME,..", "kernels, by parts of their names [the one that a call gets]");
  arguments.choices("--pass", o->passes, {"forward", "backward"}, "passes");
  arguments.choices("--dtype", o->dtypes, {"fp32", "fp16", "bf16"}, "types of q, k, v, out");
  arguments.choices("--layout", o->layouts, {"bshd", "bhsd"}, "orders of the axes in memory");
  arguments.integers("--batch", o->batch, kExtent, "sequences");
  arguments.integers("--heads", o->heads, kExtent, "query heads");
  arguments.integers("--kv-heads", o->kv_heads, kExtent, "key/value heads [as --heads]");
  arguments.integers("--seqlen", o->seqlen, kExtent, "query and key lengths");
  arguments.integers("--seqlen-q", o->seqlen_q, kExtent, "query lengths [as --seqlen]");
  arguments.integers("--seqlen-k", o->seqlen_k, kExtent, "key lengths [as --seqlen]");
  arguments.integers("--head-dim", o->head_dim, kExtent, "head sizes of q and k");
  arguments.integers("--head-dim-v", o->head_dim_v, kExtent, "head sizes of v and out [as --head-dim]");
  arguments.integers("--threads", o->threads, {0, kMostThreads}, "threads, 0 = all cores");
  declare(arguments, o->scores);
  arguments.group("How");
  arguments.integer("--ms", o->milliseconds, {1, 3'600'000}, "time for each kernel and shape, in milliseconds");
  arguments.integer("--runs", o->runs, {1, 1'000'000}, "at least so many runs");
  arguments.integer("--fast-memory", o->fast_memory, kExtent, "M of standard and v1, fp32 elements [L2 / 4]");
  arguments.integer("--seed", o->seed, {0, INT64_MAX}, "of the random inputs");
  arguments.flag("--check", o->check, "compute the error against fp64, too; slow");
  arguments.group("Output");
  arguments.flag("--json", o->json, "one list of rows");
  arguments.flag("--csv", o->csv, "a header line and one line a row");
  arguments.excludes("--json", "--csv");
  return [o] { return Bench(*o).run(); };
}

}  // namespace

const Command kBench = {"bench", "time kernels on shapes, forward and backward", kNotes, declare_bench};

}  // namespace tilewise::cli
