// The workspace of standard attention: squares of rows x keys for every head of every sequence at once, and a few
// numbers a row.
#pragma once

#include <type_traits>

#include "core/kernel.h"
#include "core/mask.h"
#include "core/numbers.h"
#include "cuda/common/element.cuh"
#include "cuda/common/token_blocks.cuh"

namespace tilewise::cuda::standard {

// In which S and dP lie in memory: the type of q, as contract C8 has it. fp16 ends at 65504 and scores need not.
template <class E>
using ScoreElement = std::conditional_t<std::is_same_v<E, __half>, float, E>;

// What a product computes: S, dP; O, dQ; dK, dV.
enum class Result { scores, dprobs, out, dq, dk, dv };

inline constexpr int kPiece = 8;  // elements that a thread reads and writes at a time; squares have whole ones

// Row i of head h lies at (h, token_of(i)), its key j at column j. Columns outside hull_pieces() are not touched.
struct Squares {
  int64_t total_rows;  // B * Sq, or those of a packed tensor
  int64_t row;         // elements from row to row
  KeyRange* hulls;     // [B][Hk]  hull of the keys that are live for some row of the group's heads
  char* scores;        // [H][total_rows][row]  S
  char* probs;         // [H][total_rows][row]  P: normalised, dropped
  char* dprobs;        // [H][total_rows][row]  dP
  char* dscores;       // [H][total_rows][row]  dS
  float* lse;          // [H][total_rows]  forward: of this call's keys and the sink; backward: -inf where P is 0
  float* sums;         // [H][total_rows]  forward: l of the keys alone, 0 where none is live
  float* shift;        // [H][total_rows]  backward: dLSE - rowsum(dO * O)
  int64_t bytes;

  template <class T>
  TILEWISE_DEVICE T* row_of(char* square, int64_t h, int64_t token) const {
    return reinterpret_cast<T*>(square) + (h * total_rows + token) * row;
  }
  TILEWISE_DEVICE KeyRange& hull(const Problem& p, int64_t b, int64_t h_kv) const {
    return hulls[b * p.heads_kv + h_kv];
  }
};

// All rows of all heads, one after the other; some of these are past the end of their sequence.
struct RowOfHead {
  int64_t sequence, head, i;
};
inline int64_t rows_of_heads(const Problem& p) { return TokenBlocks::rows(p, 1).count() * p.heads; }
TILEWISE_DEVICE RowOfHead row_of_head(const Problem& p, int64_t index) {
  const TokenBlocks tokens = TokenBlocks::rows(p, 1);
  const int64_t count = tokens.count();
  const TokenBlock token = tokens.find(index % count);
  return {token.sequence, index / count, token.first};
}

// Which token of all of q's row i is.
TILEWISE_DEVICE int64_t token_of(const Problem& p, const Sequence& s, int64_t i) {
  return s.q_slot * p.q.shape[1] + s.first_row + i;
}

// The columns of a square that are written: whole pieces.
TILEWISE_DEVICE KeyRange hull_pieces(KeyRange hull) { return {round_down(hull.lo, kPiece), round_up(hull.hi, kPiece)}; }

inline Type score_type(const Problem& p) { return p.type == Type::f16 ? Type::f32 : p.type; }

// With workspace null it only counts.
Squares lay_out(const Problem& p, char* workspace);

// Squares whose bytes cannot be counted, and types that the products do not take.
void refuse(const Problem& p, Text& reason);

// hulls, before everything else.
Status load_hulls();
Status find_hulls(const Problem& p, const Squares& squares, void* stream);

}  // namespace tilewise::cuda::standard
