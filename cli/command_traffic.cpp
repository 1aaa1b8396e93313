// tilewise traffic: the bytes that each algorithm moves between slow and fast memory, by the model.
#include <array>

#include "cli/commands.h"
#include "cli/format_options.h"
#include "cli/shape_lists.h"
#include "cli/standard_streams.h"
#include "cli/table.h"
#include "core/device.h"
#include "traffic/traffic.h"

namespace tilewise::cli {
namespace {

struct TrafficOptions {
  ShapeLists shapes;
  ScoreOptions scores;
  std::vector<int64_t> fast_memory;
  FormatOptions format;
};

constexpr const char* kNotes = R"(
A machine with a slow memory, which holds tensors and workspace, and a fast one of M elements of fp32 (--fast-memory).
FLOPs are those of the matrix products over live pairs. FLOP/byte is the arithmetic intensity: below the machine's
ratio of FLOP/s to bytes/s an algorithm waits for memory. The last column says how the bytes grow, a head, with the
length N and the head size d. A problem too large to count has no numbers.

On a GPU (--device cuda) the bytes are those of its kernels, with the tiles that they choose, at two levels: `read`,
`written` and `moved` pass between the L2 cache and the multiprocessors, `device` between device memory and the cache.

Examples:
  tilewise traffic --seqlen 1024,4096,16384
  tilewise traffic --fast-memory 16384,65536,262144 --head-dim 64,128
  tilewise traffic --pass backward --causal --json)";

struct Named {
  Algorithm algorithm;
  const char* name;
  const char* growth;
};
constexpr std::array<Named, 3> kAlgorithms = {{{Algorithm::standard, "standard", "N^2 + N d"},
                                               {Algorithm::v1, "v1", "N^2 d^2 / M + N d"},
                                               {Algorithm::v2, "v2", "N^2 d^2 / M + N d"}}};

Table traffic_table() {
  using enum Column::Place;
  return Table(joined<Column>(
      {{"algorithm", "algorithm", shown}, {"pass", "pass", caption}, {"dtype", "dtype", caption}}, size_columns(),
      {{"fast_memory", "M", caption, as_count},
       {"flops", "GFLOP", shown, as_giga},
       {"bytes_read", "read", shown, as_size},
       {"bytes_written", "written", shown, as_size},
       {"bytes_model", "moved", shown, as_size},
       {"flops_per_byte", "FLOP/byte", shown, as_decimal},
       {"growth", "grows as", shown},
       {"device_bytes", "device", caption, as_size}}));
}

// Empty where a problem is too large to count.
struct Numbers {
  Cell flops, bytes_read, bytes_written, bytes, flops_per_byte, device_bytes;
};

Numbers numbers_of(const std::optional<Traffic>& traffic) {
  if (!traffic) return {};
  const int64_t bytes = traffic->bytes_read + traffic->bytes_written;
  const Cell intensity = bytes > 0 ? Cell(static_cast<double>(traffic->flops) / static_cast<double>(bytes)) : Cell();
  const Cell device = traffic->device_bytes > 0 ? Cell(traffic->device_bytes) : Cell();  // a CPU has none
  return {traffic->flops, traffic->bytes_read, traffic->bytes_written, bytes, intensity, device};
}

// Of the kernel for GPUs; none if it refuses the problem.
std::optional<Traffic> traffic_on_gpu(const char* kernel, const Problem& problem) {
  PlanOptions options;
  options.force = kernel;
  Plan plan;
  const Status status = make_plan(problem, options, plan);
  if (status.code == TW_UNSUPPORTED) return std::nullopt;
  check(status);
  return traffic_of(plan, problem);
}

ExitCode print_traffic(const TrafficOptions& o) {
  Table table = traffic_table();
  const std::vector<int64_t> sizes = o.fast_memory.empty() ? std::vector{this_cpu().l2_bytes / 4} : o.fast_memory;
  for (const Shape& s : shapes_of(o.shapes)) {
    check_options(s);
    const Problem problem = planned_problem(describe(s, o.scores));
    for (const int64_t fast_memory : sizes) {
      for (const Named& named : kAlgorithms) {
        const Numbers n = numbers_of(s.device.is_gpu() ? traffic_on_gpu(named.name, problem)
                                                       : traffic_of(named.algorithm, problem, fast_memory));
        table.add(joined<Cell>({std::string(named.name), std::string(name_of(s.pass)), std::string(name_of(s.dtype))},
                               size_cells(s, o.scores.causal),
                               {fast_memory, n.flops, n.bytes_read, n.bytes_written, n.bytes, n.flops_per_byte,
                                std::string(named.growth), n.device_bytes}));
      }
    }
  }
  write_output(table.render(o.format.format()));
  return ExitCode::ok;
}

Action declare_traffic(Arguments& arguments) {
  const auto o = std::make_shared<TrafficOptions>();
  arguments.group("Problems");
  declare(arguments, o->shapes);
  arguments.integers("--fast-memory", o->fast_memory, kExtent, "M, fp32 elements [L2 / 4]");
  declare(arguments, o->scores);
  declare(arguments, o->format);
  return [o] { return print_traffic(*o); };
}

}  // namespace

const Command kTraffic = {"traffic", "bytes that each algorithm moves, by the model", kNotes, declare_traffic};

}  // namespace tilewise::cli
