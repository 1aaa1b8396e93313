// Which rows and keys of a problem meet, for the traffic model. Works before the data of lengths and masks is there.
#pragma once

#include "core/mask.h"
#include "traffic/traffic.h"

namespace tilewise {

// A copy of the problem without the lengths and intervals whose data is missing. Packed sequences whose offsets are
// missing count as equally long.
class LiveProblem {
 public:
  explicit LiveProblem(const Problem& given);

  const Problem& operator*() const { return problem_; }
  const Problem* operator->() const { return &problem_; }

  Sequence sequence(int64_t b) const;

  // visit(sequence, first head of a group, times): for each kv head of each sequence, those that are alike counted
  // once.
  template <class Visit>
  void each_group(Visit visit) const {
    for (int64_t b = 0; b < problem_.batch; ++b) {
      const Sequence s = sequence(b);
      const bool by_head = keys_differ_by_head(problem_);
      for (int64_t h = 0; h < (by_head ? problem_.heads_kv : 1); ++h)
        visit(s, h * problem_.group(), by_head ? 1 : problem_.heads_kv);
    }
  }

  // Hull of the live keys of `count` rows from `first` of `heads` heads from h, rows of the same token side by side.
  KeyRange hull(const Sequence& s, int64_t h, int64_t heads, int64_t first, int64_t count) const;
  KeyRange hull(const Sequence& s, int64_t h, int64_t heads) const { return hull(s, h, heads, 0, s.rows * heads); }

  int64_t pairs(const Sequence& s, int64_t h, int64_t heads) const;  // live ones

  // Bytes of bias and mask that these heads read: once a live pair.
  int64_t term_bytes(const Sequence& s, int64_t h, int64_t heads) const;

  // Sum over blocks of `rows` rows of a head: its rows times the blocks of `keys` keys, from hull.lo on, that some row
  // uses. What an inner loop over blocks of rows moves if it leaves out dead blocks.
  int64_t row_visits(const Sequence& s, int64_t h, KeyRange hull, int64_t rows, int64_t keys) const;

 private:
  KeyRange live(const Sequence& s, int64_t h, int64_t i) const { return live_keys(problem_, s, h, i); }

  Problem problem_;
  Problem readable_;  // the same; packed where offsets can be read
};

// What the kernels for GPUs move for so many bytes that they copy to shared memory. Their rows lie an odd number of 16
// bytes apart there, so that ldmatrix meets no bank twice; in every second row the two halves of a sector of 32 bytes
// then belong to different sectors of shared memory, and the hardware fetches the sector for each of them.
inline constexpr int64_t copied(int64_t bytes) { return bytes + bytes / 2; }

// total += times * part, bytes only.
void add(const Traffic& part, int64_t times, Traffic& total);

// What kernels go through again and again stays in the L2 cache or passes to and from device memory each time.
struct GpuCache {
  int64_t bytes = 0;
  int64_t multiprocessors = 1;

  bool holds_inputs(int64_t size) const { return size <= bytes; }
  // What is written too lies in both halves of the cache, each of which serves half of the multiprocessors.
  bool holds_sums(int64_t size) const { return size <= bytes / 2; }
};

// The model of each algorithm; M in fp32 elements. On a GPU device_bytes are those beyond each tensor once.
Traffic standard_traffic(const LiveProblem& live, int64_t fast_memory);
// The same on a GPU, by the tiles of its products.
Traffic standard_traffic_on_gpu(const LiveProblem& live, const Sizing& tile, const GpuCache& cache);
Traffic v1_traffic(const LiveProblem& live, int64_t fast_memory);
// The same on a GPU, between the L2 cache and the multiprocessors, by its tiles. Sums always lie in the workspace.
Traffic v1_traffic_on_gpu(const LiveProblem& live, const Sizing& tile, const GpuCache& cache);
// query_rows: rows of a grouped query block that stay while keys pass; chunk_keys: keys whose dK and dV stay while
// queries pass.
Traffic v2_traffic(const LiveProblem& live, int64_t query_rows, int64_t chunk_keys);
// The same on a GPU, between the L2 cache and the multiprocessors, by its tiles.
Traffic v2_traffic_on_gpu(const LiveProblem& live, const Sizing& tile);

}  // namespace tilewise
