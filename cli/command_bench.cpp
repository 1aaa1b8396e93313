// tilewise bench: kernels x shapes, timed.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "cli/commands.h"
#include "cli/format_options.h"
#include "cli/measured.h"
#include "cli/progress.h"
#include "cli/shape_lists.h"
#include "cli/standard_streams.h"

namespace tilewise::cli {
namespace {

struct BenchOptions {
  std::vector<std::string> kernels;
  ShapeLists shapes;
  ScoreOptions scores;
  int64_t milliseconds = 500, runs = 3, seed = 1;
  std::optional<int64_t> fast_memory;
  bool ladder = false, check = false;
  FormatOptions format;
};

constexpr const char* kNotes = R"(
Every list makes the table longer: all kernels on all shapes. Kernels take turns, with a probe of the machine's fused
multiply-add rate between any two runs. One thread is timed by its CPU time, more by the clock.

Columns (--json and --csv have all of them, under fixed names):
  ms, p10, p90     median of the runs, tenth and ninetieth percentile
  GFLOP/s          of the products over live pairs: 4 * head_dim a pair forward, 10 * head_dim backward
  % peak           of the FMA rate measured beside each run, with the kernel's own instruction set; median.
                   On a GPU: of the roofline, FLOPs at the vendor's rate or compulsory bytes at that of its memory
  moved            bytes between slow and fast memory, by the model (`tilewise traffic`); on a GPU between the L2 cache
                   and the multiprocessors
  workspace        what the plan asks for
  peak memory      growth of the process while the first run touched workspace and outputs; on a GPU their size
  max error        max |x - fp64| / max |fp64|, the worst of the outputs (--check)

Examples:
  tilewise bench --seqlen 512,2048,8192 --head-dim 64,128 --causal
  tilewise bench --kernel tiled,standard,v1 --pass forward,backward --threads 1
  tilewise bench --kernel tiled.portable,tiled.avx2 --dtype fp32,fp16,bf16 --check
  tilewise bench --heads 16 --kv-heads 4 --layout bshd,bhsd --json > bench.json
  tilewise bench --ladder --device cuda --dtype bf16 --heads 16 --head-dim 128 --seqlen 1024,4096,16384)";

// The generations, each told by its algorithm: on a CPU FlashAttention-2's order is `tiled`.
std::vector<std::string> ladder_of(const Device& device) {
  return {"standard", "v1", device.is_gpu() ? "v2" : "tiled"};
}

class Bench {
 public:
  explicit Bench(const BenchOptions& options) : options_(options), shapes_(shapes_of(options.shapes)) {
    for (const std::string& kernel : options_.kernels) check_kernel_option(kernel);
    if (options_.ladder) options_.kernels = ladder_of(shapes_[0].device);
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
    const Format format = options_.format.format();
    if (!table_.empty() || format != Format::text) write_output(table_.render(format));
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
    complain(fmt::format("{}: {}", what, failure.what()));
    if (code_ == ExitCode::ok) code_ = failure.code;
  }

  void measure_shape(const Shape& shape, const std::function<void(double)>& step) {
    step(0);
    check_options(shape);
    Workload workload(shape, options_.scores);
    workload.fill_randomly(static_cast<uint64_t>(options_.seed));
    std::optional<Call> oracle;
    if (options_.check) oracle = Call::oracle(workload, shape.pass);
    std::vector<Contender> contenders;
    for (const std::string& kernel : options_.kernels) {
      try {
        contenders.push_back(first_run(workload, shape.pass, plan_options(kernel)));
        if (oracle) contenders.back().max_error = worst_error(contenders.back().call, *oracle);
      } catch (const Failure& failure) {
        failures_.emplace_back(kernel.empty() ? title_of(shape) : kernel + " " + title_of(shape), failure);
      }
    }
    const Effort effort{static_cast<double>(options_.milliseconds) * 1e-3, options_.runs};
    add_timed(table_, workload, contenders, effort, step);
  }

  PlanOptions plan_options(const std::string& kernel) const {
    PlanOptions plan;
    plan.force = kernel.empty() ? nullptr : kernel.c_str();
    plan.fast_memory = options_.fast_memory.value_or(0);
    return plan;
  }

  BenchOptions options_;
  std::vector<Shape> shapes_;
  Table table_ = measured_table();
  std::vector<std::pair<std::string, Failure>> failures_;
  ExitCode code_ = ExitCode::ok;
};

Action declare_bench(Arguments& arguments) {
  const auto o = std::make_shared<BenchOptions>();
  arguments.group("What to time");
  arguments.texts("--kernel", o->kernels, "NAME,..", "kernels, by parts of their names [the one that a call gets]");
  arguments.flag("--ladder", o->ladder, "the generations: standard, v1, and tiled or on a GPU v2");
  arguments.excludes("--ladder", "--kernel");
  declare(arguments, o->shapes);
  declare(arguments, o->scores);
  arguments.group("How");
  arguments.integer("--ms", o->milliseconds, {1, 3'600'000}, "time for each kernel and shape, in milliseconds");
  arguments.integer("--runs", o->runs, {1, 1'000'000}, "at least so many runs");
  arguments.integer("--fast-memory", o->fast_memory, kExtent, "M of standard and v1, fp32 elements [L2 / 4]");
  arguments.integer("--seed", o->seed, {0, INT64_MAX}, "of the random inputs");
  arguments.flag("--check", o->check, "compute the error against fp64, too; slow");
  declare(arguments, o->format);
  return [o] { return Bench(*o).run(); };
}

}  // namespace

const Command kBench = {"bench", "time kernels on shapes, forward and backward", kNotes, declare_bench};

}  // namespace tilewise::cli
