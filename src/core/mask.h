// Masks as key intervals: key j is live for row i when lo <= j < hi. Causal, window, chunk, lengths, left padding,
// positions and explicit intervals are this one thing. `mask` and `bias` are separate (contract, Masks).
#pragma once

#include "core/sequence.h"

namespace tilewise {

struct KeyRange {
  int64_t lo = 0, hi = 0;
  TILEWISE_INLINE bool empty() const { return lo >= hi; }
};

// The live keys of row i of query head h; {0, 0} if there are none.
KeyRange live_keys(const Problem& problem, const Sequence& sequence, int64_t h, int64_t i);

// The live keys of a row depend on its head.
TILEWISE_INLINE static bool keys_differ_by_head(const Problem& problem) { return problem.key_begin || problem.key_end; }

// What a set of rows has in common: `any` spans every key that is live for some row, `all` the keys live for each.
struct RowsRange {
  KeyRange any{INT64_MAX, 0}, all{0, INT64_MAX};

  TILEWISE_INLINE void add(KeyRange row) {
    all.lo = all.lo > row.lo ? all.lo : row.lo;
    all.hi = all.hi < row.hi ? all.hi : row.hi;
    if (!row.empty()) widen(row);
  }
  TILEWISE_INLINE void add(const RowsRange& other) {
    all.lo = all.lo > other.all.lo ? all.lo : other.all.lo;
    all.hi = all.hi < other.all.hi ? all.hi : other.all.hi;
    if (!other.any.empty()) widen(other.any);
  }
  TILEWISE_INLINE KeyRange hull() const { return any.empty() ? KeyRange{} : any; }
  TILEWISE_INLINE bool dead(int64_t lo, int64_t hi) const { return hi <= any.lo || lo >= any.hi; }
  TILEWISE_INLINE bool whole(int64_t lo, int64_t hi) const { return lo >= all.lo && hi <= all.hi; }

 private:
  TILEWISE_INLINE void widen(KeyRange row) {
    any.lo = any.lo < row.lo ? any.lo : row.lo;
    any.hi = any.hi > row.hi ? any.hi : row.hi;
  }
};

}  // namespace tilewise
