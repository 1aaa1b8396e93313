// tilewise demo: one attention of a real model, three algorithms side by side.
#include <fmt/format.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/demo_data.h"
#include "cli/demo_gpu.h"
#include "cli/demo_summary.h"
#include "cli/measured.h"
#include "cli/progress.h"
#include "cli/sampled_oracle.h"
#include "cli/standard_streams.h"
#include "cli/text.h"
#include "core/threads.h"

namespace tilewise::cli {
namespace {

struct DemoOptions {
  std::string data;
  int64_t tokens = 8192, threads = 0;
  bool json = false;
};

constexpr const char* kNotes = R"(
Three ways to compute the same causal attention, their matrix products equally good:
  standard           writes the scores and probabilities of all pairs to memory, as the textbook has it
  FlashAttention-1   keys outside, queries inside: rescales the output in memory at each step
  tiled              queries outside, keys inside: the output stays in fast memory; the kernel that calls get

Where there is a GPU, standard attention, FlashAttention-1 and FlashAttention-2 follow on it.

Columns:
  max error   max |x - fp64| / max |fp64| against the same attention in double precision
  workspace   memory beside inputs and outputs
  moved       bytes between slow and fast memory, by the model of `tilewise traffic`

Examples:
  tilewise demo
  tilewise demo --tokens 2048
  tilewise demo --data my_layer.safetensors --json)";

constexpr int64_t kGpuTokens = 4;  // so many times more than on the CPU
constexpr int64_t kFirstTokens = 512, kBackwardTokens = 1024, kSampledRows = 32;

class Demo {
 public:
  explicit Demo(const DemoOptions& options)
      : options_(options), data_(demo_data_path(options.data)), progress_(steps()) {}

  ExitCode run() {
    introduce();
    const int64_t real = std::min(data_.tokens(), options_.tokens);
    heading("Forward on the text; error over all rows");
    for (int64_t tokens = std::min(kFirstTokens, real); tokens <= real; tokens *= 2) {
      results_.forward[tokens] = compare(tokens, Pass::forward);
    }
    if (options_.tokens > real) {
      heading(fmt::format("Forward on its {} rows repeated; error over {} rows of each head", count_text(real),
                          kSampledRows));
      for (int64_t tokens = real * 2; tokens <= options_.tokens; tokens *= 2) {
        results_.forward[tokens] = compare(tokens, Pass::forward);
      }
    }
    const int64_t backward = std::min(kBackwardTokens, real);
    heading("Backward on the text, with a random gradient of the output; error over dq, dk, dv");
    results_.backward[backward] = compare(backward, Pass::backward);
    progress_.clear();
    tell(fmt::format("\n{}\n{}", bold("What this shows"), demo_summary(results_)));
    if (check_gpu(0).ok()) climb_on_gpu();
    if (options_.json) write_output(table_.render(Format::json));
    return exact_ ? ExitCode::ok : ExitCode::check_failed;
  }

 private:
  // Lengths that double, three algorithms each, forward; and one length backward.
  int64_t steps() const {
    int64_t lengths = 1;
    for (int64_t tokens = kFirstTokens; tokens <= options_.tokens; tokens *= 2) ++lengths;
    return lengths * static_cast<int64_t>(kDemoAlgorithms);
  }

  // Standard attention, FlashAttention-1 and FlashAttention-2 on GPU 0, in bf16.
  void climb_on_gpu() {
    Table ladder = measured_table();
    demo_on_gpu(data_, options_.tokens * kGpuTokens, ladder, [&](int64_t tokens, const char* kernel) {
      progress_.show(done_, fmt::format("{} tokens on the GPU, {}", count_text(tokens), kernel));
    });
    tell(fmt::format("\n{}\n{}", bold("The same attention on the GPU, in bf16; error over 32 rows of each head"),
                     ladder.render(Format::text)));
    table_.add_rows_of(ladder);
  }

  void tell(const std::string& text) {
    if (options_.json) return;
    progress_.clear();
    write_output(text);
    flush_output();
  }

  void introduce() {
    const std::string what = options_.data.empty()
                                 ? "a layer of the language model SmolLM2-135M reading Alice in Wonderland"
                                 : options_.data;
    tell(fmt::format("Causal attention of {}:\n{} query heads, {} key/value heads, head_dim {}, fp32, {} threads.\n",
                     what, data_.heads(), data_.kv_heads(), data_.head_dim(),
                     options_.threads > 0 ? options_.threads : available_cores()));
  }

  void heading(const std::string& text) {
    const std::string columns =
        fmt::format(kPattern, "tokens", "algorithm", "max error", "ms", "", "workspace", "moved", "");
    tell(fmt::format("\n{}\n{}\n", bold(text), columns));
  }

  DemoLines compare(int64_t tokens, Pass pass) {
    const Workload workload = data_.workload({.tokens = tokens, .pass = pass, .threads = options_.threads});
    std::optional<Call> oracle;
    show_progress(tokens, "the fp64 reference");
    const bool every_row = tokens <= data_.tokens();
    if (every_row) oracle = Call::oracle(workload, pass);

    std::array<std::optional<Contender>, kDemoAlgorithms> contenders;
    std::array<std::string, kDemoAlgorithms> troubles;
    for (size_t i = 0; i < kDemoAlgorithms; ++i) {
      show_progress(tokens, kDemoAlgorithm[i].title);
      try {
        PlanOptions options;
        options.force = kDemoAlgorithm[i].kernel;
        contenders[i] = first_run(workload, pass, options);
      } catch (const Failure& failure) {
        if (failure.code != ExitCode::out_of_memory) throw;
        troubles[i] = failure.what();
        continue;
      }
      contenders[i]->max_error = every_row ? worst_error(contenders[i]->call, *oracle)
                                           : sampled_error(workload, contenders[i]->call, kSampledRows);
      ++done_;
    }
    const DemoLines lines = time(workload, contenders);
    exact_ = exact_ && within_contract(lines);
    for (size_t i = 0; i < kDemoAlgorithms; ++i) tell(line_text(tokens, i, lines, troubles[i]));
    return lines;
  }

  DemoLines time(const Workload& workload, const std::array<std::optional<Contender>, kDemoAlgorithms>& contenders) {
    std::vector<const Call*> calls;
    for (const auto& contender : contenders) {
      if (contender) calls.push_back(&contender->call);
    }
    const Effort effort{0.15, workload.shape.seqlen_q <= data_.tokens() ? 3 : 1};
    const std::vector<Timing> timings = measure(calls, effort, [](double) {});
    DemoLines lines;
    for (size_t i = 0, timed = 0; i < kDemoAlgorithms; ++i) {
      if (!contenders[i]) continue;
      const Contender& contender = *contenders[i];
      const Timing& timing = timings[timed++];
      add_measured(table_, workload, contender, timing);
      lines[i] = DemoLine{median(timing.ms), *contender.max_error,
                          static_cast<int64_t>(contender.call.plan().sizing.workspace_bytes),
                          bytes_moved(contender.call).value_or(0)};
    }
    return lines;
  }

  static std::string line_text(int64_t tokens, size_t place, const DemoLines& lines, const std::string& trouble) {
    const std::string length = place == 0 ? count_text(tokens) : "";
    const char* const title = kDemoAlgorithm[place].title;
    if (!lines[place]) return fmt::format("{:>7}  {:<17} {}\n", length, title, trouble);
    const DemoLine& line = *lines[place];
    const auto against = [&](double standard, double own, const char* better, const char* worse) {
      return place == kStandard || !lines[kStandard] ? "" : against_text(standard, own, better, worse);
    };
    const auto standard = lines[kStandard].value_or(line);
    return fmt::format(kPattern, length, title, error_text(line.error), time_text(line.ms),
                       against(standard.ms, line.ms, "faster", "slower"), size_text(line.workspace),
                       size_text(line.moved),
                       against(static_cast<double>(standard.moved), static_cast<double>(line.moved), "fewer", "more")) +
           "\n";
  }

  void show_progress(int64_t tokens, const char* what) {
    progress_.show(done_, fmt::format("{} tokens, {}", count_text(tokens), what));
  }

  static constexpr const char* kPattern = "{:>7}  {:<17}{:>10}{:>10}  {:<13}{:>10}{:>10}  {}";

  DemoOptions options_;
  DemoData data_;
  Progress progress_;
  DemoResults results_;
  Table table_ = measured_table();
  int64_t done_ = 0;
  bool exact_ = true;
};

Action declare_demo(Arguments& arguments) {
  const auto o = std::make_shared<DemoOptions>();
  arguments.text("--data", o->data, "FILE", "safetensors file with q, k, v of one layer [SmolLM2's]");
  arguments.integer("--tokens", o->tokens, {1, 1 << 17}, "up to so many tokens; beyond the file's, rows are repeated");
  arguments.integer("--threads", o->threads, {0, kMostThreads}, "threads, 0 = all cores");
  arguments.flag("--json", o->json, "one list of rows");
  return [o] { return Demo(*o).run(); };
}

}  // namespace

const Command kDemo = {"demo", "one attention of a real model, three algorithms side by side", kNotes, declare_demo};

}  // namespace tilewise::cli
