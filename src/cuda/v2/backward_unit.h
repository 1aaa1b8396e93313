// What the host tells v2's backward kernels, and the doors of the translation units that hold them: one for each
// element type and head size.
#pragma once

#include <vector_types.h>

#include "core/kernel.h"
#include "core/numbers.h"
#include "core/sequence.h"
#include "cuda/v2/backward_tiles.h"

namespace tilewise::cuda::v2 {

// Rows of all sequences stand in the workspace one after the other, each sequence from a multiple of kRowStep on, so
// that no block of queries holds rows of two.
inline constexpr int kRowStep = 64;
inline constexpr int kFragmentRows = 16, kMostWarps = 8;

// Where the kernels of a call leave what the next one reads, and what they all know. R = rows.
struct BackwardWork {
  float* dq_sum = nullptr;  // [heads, R / 16, D / 8, 32, 4]: accumulators of 16 x 8, as the lanes of mma hold them
  float* lse = nullptr;     // [heads, R] in log2 units, general: natural; +inf for rows without keys or past
                            // the end: there P is 0
  float* delta = nullptr;   // [heads, R] rowsum(dO * O) - dLSE
  int2* live = nullptr;     // [heads or 1, R] not simple: key interval of a row
  int4* ranges = nullptr;   // [heads or 1, R / 16] not simple: begin and end of the keys that some of 16 rows use, and
                            // of those that all of them use
  int* turns = nullptr;     // [heads, R / 16, 8] in order: how many blocks of keys have added to a warp's part of dQ
  int* ticket = nullptr;    // [1] in order: how many blocks of keys have been started
  int64_t rows = 0;         // R
  bool wants_dq = false;
  bool in_order = false;  // blocks of keys add to dQ one after the other
  float scale_log2 = 0;   // softmax_scale * log2(e), rounded
  double lse_unit = 0;    // what makes lse of a natural one: so scores as large as they come cancel
  int group = 0;          // query heads of a kv head
  int row_blocks = 0;     // of 16 rows, that the longest sequence may have
  int key_blocks = 0;     // that the longest sequence may have
  int section = 0;  // (sequence, kv head) pairs whose Q, dO and dQ stay in L2 while all their blocks of keys visit them
};

TILEWISE_INLINE int64_t work_rows(const Problem& p) {
  return p.packed_q ? round_up(p.total_rows, kRowStep) + p.batch * kRowStep : p.batch * round_up(p.max_rows, kRowStep);
}
TILEWISE_INLINE int64_t first_work_row(const Problem& p, const Sequence& s) {
  return p.packed_q ? round_down(s.first_row, kRowStep) + s.index * kRowStep : s.index * round_up(p.max_rows, kRowStep);
}

enum class BackwardMask : int {
  simple,  // none or causal, in either alignment
  ranges,  // any key intervals; with a large tile
  general  // those, and whatever scores have beyond the scale; with a small tile
};

// How dbias is found: its tiles are units of work, cut into parts where they are few.
inline constexpr int kBiasTile = 64;  // rows and keys of a tile
struct BiasWork {
  float* parts = nullptr;  // [splits, units, kBiasTile, kBiasTile], where splits > 1
  int64_t units = 0;
  int64_t visits = 0;                    // tiles of pairs that read a unit
  int64_t splits = 1;                    // thread blocks that share them
  int64_t row_tiles = 0, key_tiles = 0;  // that the longest sequence may have
};

// E: element type of 16 bits, D: head size.
template <class E, int D>
struct BackwardUnit {
  static Status load(const Problem& problem, const BackwardTile& tile, BackwardMask mask);
  static Status launch(const Problem& problem, const BackwardTile& tile, BackwardMask mask, const BackwardWork& work,
                       void* stream);
};

// O and dO in fp32, with every option.
template <int D>
struct BackwardF32Unit {
  static Status load(const Problem& problem);
  static Status launch(const Problem& problem, const BackwardWork& work, void* stream);
};

// dbias, once the workspace is prepared. E: element type, float for whatever BackwardF32Unit serves.
template <class E>
struct BackwardBiasUnit {
  static Status load();
  static Status launch(const Problem& problem, const BackwardWork& work, const BiasWork& bias, void* stream);
};

}  // namespace tilewise::cuda::v2
