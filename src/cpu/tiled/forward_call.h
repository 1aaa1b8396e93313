// The forward call: workers draw units from one counter, (sequence, block of query rows) longest first, all kv heads of
// one before the next. A kernel is this and a traits file.
#pragma once

#include "core/kernel.h"
#include "cpu/tiled/forward.h"

namespace tilewise::cpu {

template <class Simd>
class ForwardCall {
  static constexpr int64_t kCols = Simd::kTileCols;
  static constexpr int64_t kLeastPanels = 4, kMostPanels = 32;  // of a unit
  static constexpr int64_t kPanelBytes = 3 << 19;               // Q^T and O^T of a unit, at most, while panels allow it
  static constexpr int64_t kUnitsOfWorker = 4;                  // enough for an even end

 public:
  static constexpr int kMostDims = 512;

  static void refuse(const Problem& problem, Text& reason) {
    const int64_t dims = greater(problem.head_dim, problem.value_dim);
    if (dims > kMostDims) reason.format("head size %lld is above %d", static_cast<long long>(dims), kMostDims);
  }

  static Sizing size(const Problem& problem, const Settings& settings) {
    const ForwardCall call(problem, settings, nullptr);
    Sizing sizing;
    sizing.query_rows = call.tiles_.query_rows;
    sizing.keys = call.tiles_.keys;
    sizing.workspace_bytes = call.shared_bytes_ + settings.workers * call.worker_bytes_;
    return sizing;
  }

  static Status launch(const Problem& problem, const Settings& settings, const Launch& launch) {
    ForwardCall call(problem, settings, launch.workspace);
    call.list_units();
    const int64_t workers = lesser(settings.workers, call.counter_->total);
    if (workers > 0) launch.parallel(workers, work, &call);
    return {};
  }

 private:
  struct Unit {
    int64_t sequence, first_row, rows;  // packed rows
  };

  // Sizes grow with those of the problem, so a workspace serves all smaller ones.
  ForwardCall(const Problem& problem, const Settings& settings, char* workspace)
      : problem_(problem), workspace_(workspace), group_(problem.heads / problem.heads_kv) {
    const int64_t dims = problem.head_dim + problem.value_dim;
    const int64_t panels = problem.total_rows * group_ / kCols;
    const int64_t most = clamp(kPanelBytes / (dims * kCols * 4), kLeastPanels, kMostPanels);
    const int64_t share =
        settings.workers == 1 ? most : panels * problem.heads_kv / (kUnitsOfWorker * settings.workers);
    const int64_t longest = greater(1, ceil_div(problem.max_rows * group_, kCols));
    tiles_.query_rows = lesser(clamp(share, kLeastPanels, most), longest) * kCols;
    tiles_.keys = greater(problem.head_dim, problem.value_dim) <= 128 ? 192 : 96;
    // A sequence of n panels makes at most n / kLeastPanels + 1 units.
    const int64_t most_units = (panels + problem.batch) / kLeastPanels + problem.batch;
    Carver carve{workspace};
    counter_ = carve.take<UnitCounter>(1);
    units_ = carve.take<Unit>(most_units);
    cost_ = carve.take<int64_t>(most_units);
    order_ = carve.take<int64_t>(most_units);
    shared_bytes_ = carve.used;
    Carver sizing{nullptr};
    ForwardWorker<Simd>(problem, tiles_, sizing);
    worker_bytes_ = sizing.used;
  }

  // Units of a sequence are about equal, so that the last is not a short one.
  void list_units() {
    int64_t count = 0;
    for (int64_t b = 0; b < problem_.batch; ++b) {
      const Sequence sequence = sequence_of(problem_, b);
      const int64_t rows = sequence.rows * group_, parts = greater(1, ceil_div(rows, tiles_.query_rows));
      const int64_t step = round_up(ceil_div(rows, parts), kCols);
      for (int64_t first = 0; first < rows; first += step, ++count) {
        units_[count] = {b, first, lesser(step, rows - first)};
        cost_[count] = cost_of(sequence, units_[count]);
      }
    }
    order_longest_first<Simd>(cost_, count, order_);
    counter_->next = 0, counter_->total = count * problem_.heads_kv;
  }

  // Keys between the outermost ones of its first and last row, for each row.
  int64_t cost_of(const Sequence& sequence, const Unit& unit) const {
    RowsRange range;
    range.add(live_keys(problem_, sequence, 0, unit.first_row / group_));
    range.add(live_keys(problem_, sequence, 0, (unit.first_row + unit.rows - 1) / group_));
    return range.any.empty() ? 0 : unit.rows * (range.any.hi - range.any.lo);
  }

  static void work(void* context, int64_t worker) {
    const auto& call = *static_cast<const ForwardCall*>(context);
    Carver carve{call.workspace_ + call.shared_bytes_ + worker * call.worker_bytes_};
    ForwardWorker<Simd> scratch(call.problem_, call.tiles_, carve);
    const int64_t heads = call.problem_.heads_kv;
    for (int64_t i; call.counter_->draw(i);) {
      const Unit& unit = call.units_[call.order_[i / heads]];
      scratch.run(sequence_of(call.problem_, unit.sequence), i % heads, unit.first_row, unit.rows);
    }
  }

  const Problem& problem_;
  char* workspace_;
  int64_t group_;  // query heads of a kv head; packed row = token * group_ + head of the group
  ForwardTiles tiles_;
  UnitCounter* counter_;
  Unit* units_;     // [most_units]
  int64_t* cost_;   // [most_units]
  int64_t* order_;  // [most_units] units, longest first
  int64_t shared_bytes_, worker_bytes_;
};

}  // namespace tilewise::cpu
