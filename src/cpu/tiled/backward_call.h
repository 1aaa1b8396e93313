// The backward call: its memory, its units of work, and the kernel that the table lists. Every worker draws units from
// one counter, chunk by chunk, all (sequence, kv head) of one before the next, so that tickets are rarely waited for.
#pragma once

#include "core/kernel.h"
#include "cpu/common/sink_gradient.h"
#include "cpu/tiled/backward.h"
#include "cpu/tiled/backward_bias.h"

namespace tilewise::cpu {

// Keys of a unit: so many that loading a query block for them costs little (3 % for 336), fewer where there would be
// too few units to share out.
inline constexpr int64_t kMostChunkKeys = 1056, kLeastChunkKeys = 336, kEnoughUnits = 8, kChunkStep = 16;

template <class Simd>
class BackwardCall {
 public:
  static constexpr Pass kPass = Pass::backward;
  static constexpr Rank kRank = Rank::chosen;
  static constexpr Algorithm kAlgorithm = Algorithm::v2;

  static void refuse(const Problem&, Text&) {}

  BackwardCall(const Problem& problem, const Settings& settings, char* workspace)
      : problem_(problem), workspace_(workspace), workers_(settings.workers) {
    Carver carve{workspace};
    const int64_t group = problem.group();
    shared_.blocks = problem.total_rows * group / kBlockRows<Simd> + problem.batch;
    if (problem.dq) {
      shared_.tickets = carve.take<Ticket>(problem.heads_kv * shared_.blocks);
      const bool sums_apart = problem.dq.type != Type::f32 && problem.max_keys >= 2 * kLeastChunkKeys;
      shared_.dquery_sum = carve.take<float>(sums_apart ? problem.total_rows * problem.heads * problem.head_dim : 0);
    }
    shared_bytes_ = carve.used;
  }

  Sizing sizing() const {
    return {.query_rows = kBlockRows<Simd>,
            .keys = kBlockKeys,
            .chunk_keys = chunk_keys(problem_.max_keys),
            .workspace_bytes = static_cast<uint64_t>(shared_bytes_ + workers_ * worker_bytes())};
  }

  void run(const Parallel& parallel) {
    int64_t longest = 0;
    for (int64_t b = 0; b < problem_.batch; ++b) longest = greater(longest, sequence_of(problem_, b).keys);
    shared_.chunk_keys = chunk_keys(longest);
    for (int64_t i = 0; problem_.dq && i < problem_.heads_kv * shared_.blocks; ++i) shared_.tickets[i] = 0;
    units_.total = greater(1, ceil_div(longest, shared_.chunk_keys)) * problem_.batch * problem_.heads_kv;
    if (!problem_.dq && !problem_.dk && !problem_.dv) units_.total = 0;
    bias_units_.total = problem_.dbias ? BiasBlocks::of<Simd>(problem_, most_keys()).units(problem_) : 0;
    parallel(workers_, work, this);
    sink_gradient(problem_, workers_, parallel);
  }

 private:
  // Of the size of the problem alone.
  int64_t chunk_keys(int64_t longest) const {
    const int64_t sequences = greater(1, problem_.batch * problem_.heads_kv);
    const int64_t wanted = lesser(ceil_div(kEnoughUnits, sequences), longest / kLeastChunkKeys);
    const int64_t chunks = greater(greater(1, wanted), ceil_div(longest, kMostChunkKeys));
    return greater(kChunkStep, round_up(ceil_div(longest, chunks), kChunkStep));
  }

  int64_t most_keys() const { return lesser(kMostChunkKeys, round_up(greater(problem_.max_keys, 1), kChunkStep)); }

  int64_t worker_bytes() const {
    Carver main{nullptr}, bias{nullptr};
    BackwardWorker<Simd>(problem_, shared_, most_keys(), main);
    if (problem_.dbias) BiasWorker<Simd>(problem_, most_keys(), bias);
    return greater(main.used, bias.used);
  }

  static void work(void* context, int64_t worker) {
    auto& call = *static_cast<BackwardCall*>(context);
    char* place = call.workspace_ + call.shared_bytes_ + worker * call.worker_bytes();
    call.compute_gradients(place);
    if (call.problem_.dbias) call.compute_dbias(place);
  }

  void compute_gradients(char* place) {
    Carver carve{place};
    BackwardWorker<Simd> worker(problem_, shared_, most_keys(), carve);
    const int64_t heads = problem_.heads_kv, sequences = problem_.batch * heads;
    for (int64_t unit; units_.draw(unit);) {
      const Sequence sequence = sequence_of(problem_, unit % sequences / heads);
      const int64_t chunk = unit / sequences;
      if (chunk == 0 || chunk * shared_.chunk_keys < sequence.keys) worker.run(sequence, unit % heads, chunk);
    }
  }

  void compute_dbias(char* place) {
    Carver carve{place};
    BiasWorker<Simd> worker(problem_, most_keys(), carve);
    for (int64_t unit; bias_units_.draw(unit);) worker.run(unit);
  }

  const Problem& problem_;
  char* const workspace_;
  const int workers_;
  BackwardShared shared_ = {};
  int64_t shared_bytes_;
  UnitCounter units_ = {}, bias_units_ = {};
};

}  // namespace tilewise::cpu
