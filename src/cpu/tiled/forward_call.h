// The forward call: workers draw units from one counter, (sequence, block of query rows) longest first, all kv heads of
// one before the next.
#pragma once

#include "core/kernel.h"
#include "cpu/common/each_unit.h"
#include "cpu/tiled/forward.h"

namespace tilewise::cpu {

template <class Simd>
class ForwardCall {
  static constexpr int64_t kCols = Simd::kTileCols;
  // Query rows of a unit. More of them share the copy of a block of K and V, which costs most where its rows lie a page
  // apart (BSHD, 16 heads: 2 % less time with 1536 than with 768); fewer suit more workers.
  static constexpr int64_t kLeastRows = 96, kMostRows = 1536;
  static constexpr int64_t kMostRowBytes = 3 << 19;  // Q^T and O^T of a unit, if it has more than kLeastRows
  static constexpr int64_t kUnitsOfWorker = 4;       // or more, so that all workers end at about one time
  static_assert(kLeastRows % kCols == 0 && kMostRows % kCols == 0);

 public:
  static constexpr Pass kPass = Pass::forward;
  static constexpr Rank kRank = Rank::chosen;
  static constexpr Algorithm kAlgorithm = Algorithm::v2;

  static void refuse(const Problem&, Text&) {}

  // Sizes grow with those of the problem, so a workspace serves all smaller ones.
  ForwardCall(const Problem& problem, const Settings& settings, char* workspace)
      : problem_(problem), workspace_(workspace), workers_(settings.workers), group_(problem.group()) {
    const int64_t rows = problem.total_rows * group_, longest = greater(1, problem.max_rows * group_);
    const int64_t fitting = kMostRowBytes / ((problem.head_dim + problem.value_dim) * 4);
    const int64_t most = round_down(clamp(fitting, kLeastRows, kMostRows), kCols);
    const int64_t share = ceil_div(rows * problem.heads_kv, workers_ == 1 ? 1 : kUnitsOfWorker * workers_);
    query_rows_ = round_up(lesser(clamp(share, kLeastRows, most), longest), kCols);
    const int64_t most_units = rows / kLeastRows + problem.batch;
    Carver carve{workspace};
    units_ = carve.take<Unit>(most_units);
    cost_ = carve.take<int64_t>(most_units);
    order_ = carve.take<int64_t>(most_units);
    shared_bytes_ = carve.used;
    Carver sizing{nullptr};
    ForwardWorker<Simd>(problem, query_rows_, sizing);
    worker_bytes_ = sizing.used;
  }

  Sizing sizing() const {
    return {.query_rows = query_rows_,
            .keys = ForwardWorker<Simd>::kKeys,
            .workspace_bytes = static_cast<uint64_t>(shared_bytes_ + workers_ * worker_bytes_)};
  }

  void run(const Parallel& parallel) {
    const int64_t heads = problem_.heads_kv, count = list_units() * heads;
    each_unit<Simd>(parallel, lesser(workers_, count), count, [&](int64_t worker, int64_t i) {
      Carver carve{workspace_ + shared_bytes_ + worker * worker_bytes_};
      const Unit& unit = units_[order_[i / heads]];
      ForwardWorker<Simd>(problem_, query_rows_, carve)
          .run(sequence_of(problem_, unit.sequence), i % heads, unit.first_row, unit.rows);
    });
  }

 private:
  struct Unit {
    int64_t sequence, first_row, rows;  // packed rows
  };

  int64_t list_units() {
    int64_t count = 0;
    for (int64_t b = 0; b < problem_.batch; ++b) {
      const Sequence sequence = sequence_of(problem_, b);
      const int64_t rows = sequence.rows * group_, step = rows_of_unit(rows);
      for (int64_t first = 0; first < rows; first += step, ++count) {
        units_[count] = {b, first, lesser(step, rows - first)};
        cost_[count] = cost_of(sequence, units_[count]);
      }
    }
    order_longest_first<Simd>(cost_, count, order_);
    return count;
  }

  // Units of a sequence are about equal, so that the last is not a short one. Where they are few, their number suits
  // that of the workers.
  int64_t rows_of_unit(int64_t rows) const {
    int64_t parts = greater(1, ceil_div(rows, query_rows_));
    for (; rows / (parts + 1) >= kLeastRows; ++parts) {
      const int64_t units = parts * problem_.batch * problem_.heads_kv;
      if (units % workers_ == 0 || units > 2 * kUnitsOfWorker * workers_) break;
    }
    return round_up(ceil_div(rows, parts), kCols);
  }

  // Keys between the outermost ones of its first and last row, for each row.
  int64_t cost_of(const Sequence& sequence, const Unit& unit) const {
    RowsRange range;
    range.add(live_keys(problem_, sequence, 0, unit.first_row / group_));
    range.add(live_keys(problem_, sequence, 0, (unit.first_row + unit.rows - 1) / group_));
    const KeyRange hull = range.hull();
    return unit.rows * (hull.hi - hull.lo);
  }

  const Problem& problem_;
  char* const workspace_;
  const int64_t workers_;
  const int64_t group_;     // query heads of a kv head; packed row = token * group_ + head of the group
  int64_t query_rows_;      // of a unit, at most
  Unit* units_;             // [most_units]
  int64_t *cost_, *order_;  // [most_units]; order_: of units_, longest first
  int64_t shared_bytes_, worker_bytes_;
};

}  // namespace tilewise::cpu
