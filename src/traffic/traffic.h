// The IO model of FlashAttention's paper: bytes that an algorithm moves between slow memory (tensors and workspace) and
// a fast memory of M fp32 elements, counted along its schedule; and the bytes that `standard` and `v1` really moved.
// Both leave out what does not come in blocks: dbias, dsink, sinks, ALiBi slopes, lengths and tables.
#pragma once

#include <optional>

#include "core/plan.h"

namespace tilewise {

struct Traffic {
  int64_t flops = 0;  // 2 a multiply-add of the matrix products, live pairs only; exponentials are not counted
  int64_t bytes_read = 0, bytes_written = 0;
  int64_t device_bytes = 0;  // GPU: between its memory and the L2 cache; those above are from there on
};

// The asymptotics for N rows and keys and head size d <= sqrt(M), a head: standard N^2 + N d, v1 and v2
// N^2 d^2 / M + N d; `naive` is not modelled, its bytes are 0. Sequence lengths, offsets and masks count as far as
// their data is there: without it, sequences are as long as their slots. fast_memory: M, as in PlanOptions. No numbers
// for a problem along whose rows and sequences it takes seconds to walk, or whose numbers may pass 64 bits.
std::optional<Traffic> traffic_of(Algorithm algorithm, const Problem& problem, int64_t fast_memory);

// What a planned kernel moves, with the blocks of its plan. On a GPU at two levels: between the multiprocessors and the
// L2 cache, and between the cache and device memory: each tensor once, and each time what goes through the cache again
// and again and does not fit there: S and P of `standard`, sums and rows of `v1`.
std::optional<Traffic> traffic_of(const Plan& plan, const Problem& problem);

// The counting build: bytes moved by all calls since the last reset; flops stay 0. Elsewhere all zero.
bool counts_traffic();
Traffic counted_traffic();
void reset_counted_traffic();

}  // namespace tilewise
