// What the host side of FlashAttention-1 knows of its kernels. There is one unit for each type and padded head size, so
// that each compiles by itself.
#pragma once

#include "core/mask.h"
#include "core/numbers.h"

namespace tilewise::cuda::v1 {

// ---- Rows in the workspace. Those of a sequence begin at a whole block of `block` rows.

TILEWISE_INLINE int64_t workspace_rows(const Problem& p, int64_t block) {
  return p.batch == 0 ? 0 : round_down(p.total_rows, block) + block * p.batch;
}
TILEWISE_INLINE int64_t first_workspace_row(const Problem& p, const Sequence& s, int64_t block) {
  return round_down(s.q_slot * p.q.shape[1] + s.first_row, block) + block * s.index;
}

// fp32 sums that are read and written again and again, in the order of a warp's accumulators: lane L has row L / 4 of 8
// and columns L % 4 * 2, + 1, + 8, + 9 of 16. The same thread comes back to them each time.
struct Sums {
  float* data;     // [rows / 8][pieces][lane][4]
  int64_t pieces;  // of 16 columns
};

// ---- Forward.

struct SumAndMax {
  float l, m;
};

struct ForwardMemory {
  Sums output;        // O [H][rows][Dv]
  SumAndMax* state;   // l, m [H][rows]
  RowsRange* ranges;  // the keys that each Q_i sees [H][rows / kForwardRows]
  int64_t rows;       // of all sequences
  int splits;         // thread blocks that share the Q_i of a head
};

inline constexpr int kForwardRows = 32;  // Br
inline constexpr int kMostPairs = 4;     // of warps in a thread block: their registers fill a multiprocessor

struct ForwardUnit {
  void (*kernel)(Problem, ForwardMemory);
  int keys;                       // Bc
  int64_t key_bytes, pair_bytes;  // shared memory of K_j and V_j, and of each pair of warps
};

extern const ForwardUnit forward_f16_64, forward_f16_128, forward_f16_256;
extern const ForwardUnit forward_bf16_64, forward_bf16_128, forward_bf16_256;

// ---- Backward.

struct BackwardMemory {
  Sums dq;            // dQ [H][rows][D]
  RowsRange* ranges;  // [H][rows / Br]
  int64_t rows;
  int stages;  // 2: the copies of the next Q_i and dO_i go on beside the work on these
};

struct BackwardUnit {
  void (*kernel)(Problem, BackwardMemory);
  int rows, keys;  // Br, Bc
  int threads;
  int64_t shared_bytes, stage_bytes;  // of one stage in all; what a second one adds
};

// Shared memory that a thread block needs: wide 163 KB, narrow 99 KB.
enum class Room { wide, narrow };

// Head size 64 is always narrow.
extern const BackwardUnit backward_f16_64, backward_f16_128[2], backward_f16_256[2];
extern const BackwardUnit backward_bf16_64, backward_bf16_128[2], backward_bf16_256[2];

}  // namespace tilewise::cuda::v1
