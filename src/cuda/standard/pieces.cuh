// Eight elements of a row at a time, in fp32 registers: as few wide instructions where they lie right, one by one
// where they do not.
#pragma once

#include "cuda/standard/squares.cuh"

namespace tilewise::cuda::standard {

// Aligned to their size.
struct alignas(16) Piece16 {
  uint32_t word[4];
};

template <class T>
TILEWISE_DEVICE void read_piece(const T* from, float (&x)[kPiece]) {
  T element[kPiece];
#pragma unroll
  for (int n = 0; n < kPiece * static_cast<int>(sizeof(T)) / 16; ++n) {
    reinterpret_cast<Piece16*>(element)[n] = reinterpret_cast<const Piece16*>(from)[n];
  }
#pragma unroll
  for (int n = 0; n < kPiece; ++n) x[n] = value_of(element[n]);
}

template <class T>
TILEWISE_DEVICE void write_piece(T* to, const float (&x)[kPiece]) {
  T element[kPiece];
#pragma unroll
  for (int n = 0; n < kPiece; ++n) element[n] = element_of<T>(x[n]);
#pragma unroll
  for (int n = 0; n < kPiece * static_cast<int>(sizeof(T)) / 16; ++n) {
    reinterpret_cast<Piece16*>(to)[n] = reinterpret_cast<const Piece16*>(element)[n];
  }
}

TILEWISE_DEVICE void clear_piece(float (&x)[kPiece]) {
#pragma unroll
  for (float& one : x) one = 0;
}

// Elements [d, d + kPiece) of the row of t at `offset`, as far as it has them.
template <class T>
TILEWISE_DEVICE void store_elements(const Tensor& t, int64_t offset, int64_t d, const float (&x)[kPiece]) {
  T* to = reinterpret_cast<T*>(t.data) + offset + d;
  if (t.shape[3] - d >= kPiece && reinterpret_cast<uint64_t>(to) % 16 == 0) {
    write_piece(to, x);
    return;
  }
#pragma unroll
  for (int n = 0; n < kPiece; ++n) {
    if (d + n < t.shape[3]) to[n] = element_of<T>(x[n]);
  }
}
TILEWISE_DEVICE void store_piece(const Tensor& t, int64_t offset, int64_t d, const float (&x)[kPiece]) {
  if (t.type == Type::f16) {
    store_elements<__half>(t, offset, d, x);
  } else if (t.type == Type::bf16) {
    store_elements<__nv_bfloat16>(t, offset, d, x);
  } else {
    store_elements<float>(t, offset, d, x);
  }
}

// The same elements; zeros past the end of the row.
TILEWISE_DEVICE void load_piece(const Tensor& t, int64_t offset, int64_t d, float (&x)[kPiece]) {
#pragma unroll
  for (int n = 0; n < kPiece; ++n) x[n] = d + n < t.shape[3] ? read_element(t, offset + d + n) : 0;
}

// gradient = factor * x, added to what is there if the call accumulates.
TILEWISE_DEVICE void store_gradient(const Problem& p, const Tensor& t, int64_t offset, int64_t d, float factor,
                                    const float (&x)[kPiece]) {
  float sum[kPiece] = {};
  if (p.accumulate) load_piece(t, offset, d, sum);
#pragma unroll
  for (int n = 0; n < kPiece; ++n) sum[n] += factor * x[n];
  store_piece(t, offset, d, sum);
}

}  // namespace tilewise::cuda::standard
