// What a thread block of the backward kernel is made of: its tile and its shared memory.
#pragma once

#include "cuda/ptx/sm80.cuh"
#include "cuda/v2/backward_walk.cuh"

namespace tilewise::cuda::v2 {

// ---- Tile.

template <class E, BackwardTile kTile, BackwardMask kMask>
struct BackwardShape {
  using Element = E;
  static constexpr bool kRanges = kMask != BackwardMask::simple, kTerms = kMask == BackwardMask::general;
  static constexpr int kHeadDim = kTile.head_dim, kWarps = kTile.warps, kThreads = kTile.threads();
  static constexpr int kParts = kTile.parts, kKeys = kTile.keys(), kQueries = kTile.queries;
  static constexpr int kStages = kTile.stages, kDsBuffers = kTile.late_dq ? 2 : 1, kBlocks = kTile.blocks;
  static constexpr bool kLateDq = kTile.late_dq;
  static constexpr int64_t kSharedBytes = int64_t{kTile.shared_kb} << 10;

  // A warp that shares its keys with no other keeps P^T and dS^T in registers, as operands: for 32 queries at a time.
  static constexpr bool kAlone = kParts == 1;

  // Of two warps one makes S^T and the other dP^T, for the queries of both: a third fewer fragments are read for these.
  // Pays where operands are long: at 128 columns the exchange costs more.
  static constexpr bool kDivides = kParts == 4 && kTile.own_keys == 32 && !kTerms;

  // A warp's parts of S^T and dP^T in a round, of dK and dV, of dQ.
  static constexpr int kOwnKeys = kTile.own_keys, kOwnQueries = kAlone ? 32 : kQueries * 32 / (kParts * kOwnKeys);
  static constexpr bool kKeeps = kHeadDim <= 64 && !kAlone;  // has registers for what could be computed anew
  static constexpr int kRounds = kAlone ? kQueries / kOwnQueries : 1;
  static constexpr int kOwnCols = kHeadDim / kParts;
  static constexpr int kDqRows = kTile.dq_rows, kDqRowParts = kQueries / kDqRows;
  static constexpr int kDqCols = kHeadDim / (kWarps / kDqRowParts);
  static_assert(kOwnQueries % 16 == 0 && kOwnCols % 16 == 0 && kDqCols % 16 == 0);

  // Rows are longer by 16 bytes, so that eight of them start in different banks.
  static constexpr int kPitch = kHeadDim + 8, kProbPitch = kQueries + 8;
};

// ---- Shared memory.

template <class T>
struct BackwardStorage {
  using E = typename T::Element;
  struct Stage {
    E q[T::kQueries][T::kPitch], dout[T::kQueries][T::kPitch];
    float lse[T::kQueries], delta[T::kQueries];
  };
  E k[T::kKeys][T::kPitch], v[T::kKeys][T::kPitch];  // later dK, dV
  Stage stage[T::kStages];
  E p[T::kAlone ? 1 : T::kKeys][T::kProbPitch];  // transposed: a row is a key
  E ds[T::kDsBuffers][T::kKeys][T::kProbPitch];
  ptx::Barrier full[T::kStages], free[T::kStages], ds_full[T::kDsBuffers], ds_free[T::kDsBuffers];
  ptx::Barrier first_full;  // K and the first block of Q
  int ticket;               // in order: which block of keys this is
  KeyBlock<T> block;        // for the end
  UsedKeys used;            // not simple
  Sequence sequence;        // not simple
};

// ---- Fragments of operands in shared memory, from where the lane's first one lies.

template <class T>
struct Fragments {
  static TILEWISE_DEVICE auto rows_of(uint32_t at) {
    return [=](int step, int col, uint32_t(&b)[4]) { ptx::ldmatrix(b, at + (col * 16 * T::kPitch + step * 16) * 2); };
  }
  static TILEWISE_DEVICE auto cols_of(uint32_t at) {
    return [=](int step, int col, uint32_t(&b)[4]) {
      ptx::ldmatrix_trans(b, at + (step * 16 * T::kPitch + col * 16) * 2);
    };
  }
  template <int Rows, int Pitch>
  static TILEWISE_DEVICE auto a_of(uint32_t at) {
    return [=](int step, uint32_t(&a)[Rows][4]) {
#pragma unroll
      for (int i = 0; i < Rows; ++i) ptx::ldmatrix(a[i], at + (i * 16 * Pitch + step * 16) * 2);
    };
  }
  // Of dV and dK: in registers if the warp is alone, otherwise in shared memory.
  template <int Steps>
  static TILEWISE_DEVICE auto operand(const uint32_t (&x)[Steps][2][4], uint32_t at) {
    if constexpr (T::kAlone) {
      return [&x](int step, uint32_t(&a)[2][4]) {
#pragma unroll
        for (int i = 0; i < 8; ++i) a[i / 4][i % 4] = x[step][i / 4][i % 4];
      };
    } else {
      return a_of<2, T::kProbPitch>(at);
    }
  }
};

template <int A, int B>
TILEWISE_DEVICE void clear(float (&x)[A][B][4]) {
#pragma unroll
  for (int i = 0; i < A * B * 4; ++i) x[i / (B * 4)][i / 4 % B][i % 4] = 0;
}

// Where the columns of a token of a head begin.
template <class E>
TILEWISE_DEVICE E* element(const Tensor& t, int slot, int token, int head) {
  return reinterpret_cast<E*>(t.data) + t.offset(slot, token, head);
}

}  // namespace tilewise::cuda::v2
