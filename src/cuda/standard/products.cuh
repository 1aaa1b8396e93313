// The products of standard attention, by how squares take part:
//
//   PairProduct  a square is the result      S = scale Q K^T,  dP = dO V^T
//   RowProduct   a square times keys         O = P V,    dQ = scale dS K
//   KeyProduct   a square's columns, rows    dV = P^T dO,  dK = scale dS^T Q, over the heads of a group
//
// What lies outside the hull of the sequence's live keys, and rows that see no key, count as zeros: whatever they hold,
// NaN too, reaches nothing (contract C1, C2).
#pragma once

#include "cuda/common/joined_lse.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/standard/gemm.cuh"
#include "cuda/standard/library_products.h"
#include "cuda/standard/pieces.cuh"

namespace tilewise::cuda::standard {

// Rows or keys of one head of a tensor, a line each.
template <class E>
TILEWISE_DEVICE Operand<E> lines_of(const Tensor& t, int64_t offset, int64_t head_stride, KeyRange lines) {
  const E* data = reinterpret_cast<const E*>(t.data) + offset;
  return {.data = data,
          .stride = t.stride[1],
          .head_stride = head_stride,
          .lines = lines,
          .inside = {0, t.shape[3]},
          .aligned = starts_aligned(data, t.stride[1], head_stride)};
}

template <class E>
TILEWISE_DEVICE Operand<E> rows_of(const Tensor& t, const Sequence& s, int64_t h) {
  return lines_of<E>(t, row_offset(t, s, 0, h), t.stride[2], {0, s.rows});
}
template <class E>
TILEWISE_DEVICE Operand<E> keys_of(const Tensor& t, const Sequence& s, int64_t h_kv, KeyRange hull) {
  return lines_of<E>(t, key_offset(t, s, 0, h_kv), 0, hull);
}

// The rows of a square of one head.
template <class E>
TILEWISE_DEVICE Operand<E> square_of(const Problem& p, const Squares& squares, char* square, const Sequence& s,
                                     int64_t h, KeyRange hull) {
  return {.data = squares.row_of<E>(square, h, token_of(p, s, 0)),
          .stride = squares.row,
          .head_stride = squares.total_rows * squares.row,
          .lines = {0, s.rows},
          .inside = hull_pieces(hull)};
}

// How a result is cut into tiles: blocks of tokens down, columns across, one head after the other.
struct TilesOf {
  const TokenBlocks tokens;
  const int64_t heads, columns;  // columns: of tiles

  struct Place {
    TokenBlock tokens;
    int64_t head, column;
  };

  TILEWISE_INLINE int64_t count() const { return tokens.count() * heads * columns; }
  TILEWISE_DEVICE Place find(int64_t tile) const {
    const int64_t blocks = tokens.count();
    return {tokens.find(tile / columns % blocks), tile / columns / blocks, tile % columns};
  }
};

// ---- S, dP.

template <class E>
struct PairProduct {
  using Element = E;
  using T = Tile<E>;
  static constexpr bool kAlongA = true, kAlongB = true;

  const Problem& p;
  const Squares& squares;
  Sequence s;
  int64_t h, row, col;
  char* square;
  float factor;
  KeyRange hull, depth;
  static constexpr int64_t heads = 1;
  Operand<E> a, b;

  TILEWISE_INLINE static TilesOf tiles(const Problem& p, Result) {
    return {TokenBlocks::rows(p, T::kRows), p.heads, ceil_div(p.max_keys, T::kCols)};
  }

  TILEWISE_DEVICE PairProduct(const Problem& p, const Squares& squares, Result result, int64_t block)
      : p(p), squares(squares) {
    const auto at = tiles(p, result).find(block);
    s = find_sequence(p, at.tokens.sequence);
    h = at.head, row = at.tokens.first, col = at.column * T::kCols;
    const int64_t h_kv = h / p.group();
    hull = squares.hull(p, s.index, h_kv);
    if (result == Result::scores) {
      square = squares.scores, factor = p.softmax_scale, depth = {0, p.head_dim};
      a = rows_of<E>(p.q, s, h), b = keys_of<E>(p.k, s, h_kv, hull);
    } else {
      square = squares.dprobs, factor = 1, depth = {0, p.value_dim};
      a = rows_of<E>(p.dout, s, h), b = keys_of<E>(p.v, s, h_kv, hull);
    }
  }

  TILEWISE_DEVICE bool nothing_to_do() const {
    return row >= s.rows || hull.empty() || col >= hull.hi || col + T::kCols <= hull.lo;
  }

  TILEWISE_DEVICE void store(int64_t i, int64_t j, float (&x)[kPiece]) const {
    const KeyRange columns = hull_pieces(hull);
    if (i >= s.rows || j < columns.lo || j >= columns.hi) return;
#pragma unroll
    for (float& one : x) one *= factor;
    write_piece(squares.row_of<ScoreElement<E>>(square, h, token_of(p, s, i)) + j, x);
  }
};

// ---- O, dQ.

template <class E>
struct RowProduct {
  using Element = E;
  using T = Tile<E>;
  static constexpr bool kAlongA = true, kAlongB = false;

  const Problem& p;
  const Squares& squares;
  const Result result;
  Sequence s;
  int64_t h, row, col;
  KeyRange depth;
  static constexpr int64_t heads = 1;
  Operand<E> a, b;

  TILEWISE_INLINE static TilesOf tiles(const Problem& p, Result result) {
    return {TokenBlocks::rows(p, T::kRows), p.heads, ceil_div(dims(p, result), T::kCols)};
  }

  TILEWISE_DEVICE RowProduct(const Problem& p, const Squares& squares, Result result, int64_t block)
      : p(p), squares(squares), result(result) {
    const auto at = tiles(p, result).find(block);
    s = find_sequence(p, at.tokens.sequence);
    h = at.head, row = at.tokens.first, col = at.column * T::kCols;
    const int64_t h_kv = h / p.group();
    const KeyRange hull = squares.hull(p, s.index, h_kv);
    depth = hull_pieces(hull);
    a = square_of<E>(p, squares, result == Result::out ? squares.probs : squares.dscores, s, h, hull);
    b = keys_of<E>(result == Result::out ? p.v : p.k, s, h_kv, hull);
  }

  TILEWISE_DEVICE bool nothing_to_do() const { return row >= s.rows; }

  TILEWISE_DEVICE void store(int64_t i, int64_t d, float (&x)[kPiece]) const {
    if (i >= s.rows || d >= dims(p, result)) return;
    result == Result::out ? store_out(i, d, x) : store_dq(i, d, x);
  }

 private:
  TILEWISE_INLINE static int64_t dims(const Problem& p, Result result) {
    return result == Result::out ? p.value_dim : p.head_dim;
  }

  TILEWISE_DEVICE void store_out(int64_t i, int64_t d, float (&x)[kPiece]) const {
    const int64_t at = h * squares.total_rows + token_of(p, s, i);
    if (squares.sums[at] == 0) clear_piece(x);  // 0 * NaN of a V that other rows use is NaN
    if (p.prior_out) merge_prior(i, d, squares.lse[at], x);
    store_piece(p.out, row_offset(p.out, s, i, h), d, x);
  }

  TILEWISE_DEVICE void merge_prior(int64_t i, int64_t d, float lse, float (&x)[kPiece]) const {
    const JoinedLse joined = join(lse, read_element(p.prior_lse, lse_offset(p.prior_lse, s, i, h)));
    if (joined.joining == 0) return;
    float before[kPiece];
    load_piece(p.prior_out, row_offset(p.prior_out, s, i, h), d, before);
#pragma unroll
    for (int n = 0; n < kPiece; ++n) x[n] = joined.of(x[n], before[n]);
  }

  TILEWISE_DEVICE void store_dq(int64_t i, int64_t d, float (&x)[kPiece]) const {
    if (squares.lse[h * squares.total_rows + token_of(p, s, i)] == -INFINITY) clear_piece(x);  // not 0 * NaN
    store_gradient(p, p.dq, row_offset(p.dq, s, i, h), d, p.softmax_scale, x);
  }
};

// ---- dK, dV.

template <class E>
struct KeyProduct {
  using Element = E;
  using T = Tile<E>;
  static constexpr bool kAlongA = false, kAlongB = false;

  const Problem& p;
  const Result result;
  Sequence s;
  int64_t h_kv, row, col;
  KeyRange depth;
  int64_t heads;
  Operand<E> a, b;

  TILEWISE_INLINE static TilesOf tiles(const Problem& p, Result result) {
    return {TokenBlocks::keys(p, T::kRows), p.heads_kv, ceil_div(dims(p, result), T::kCols)};
  }

  TILEWISE_DEVICE KeyProduct(const Problem& p, const Squares& squares, Result result, int64_t block)
      : p(p), result(result), heads(p.group()) {
    const auto at = tiles(p, result).find(block);
    s = find_sequence(p, at.tokens.sequence);
    h_kv = at.head, row = at.tokens.first, col = at.column * T::kCols;
    const int64_t h = h_kv * p.group();
    const KeyRange hull = squares.hull(p, s.index, h_kv);
    if (row < hull.hi && row + T::kRows > hull.lo) depth = {0, s.rows};
    a = square_of<E>(p, squares, result == Result::dv ? squares.probs : squares.dscores, s, h, hull);
    b = result == Result::dv ? rows_of<E>(p.dout, s, h) : rows_of<E>(p.q, s, h);
    b.lse = squares.lse + h * squares.total_rows + token_of(p, s, 0), b.lse_head_stride = squares.total_rows;
  }

  TILEWISE_DEVICE bool nothing_to_do() const { return row >= s.keys; }

  TILEWISE_DEVICE void store(int64_t j, int64_t d, float (&x)[kPiece]) const {
    if (j >= s.keys || d >= dims(p, result)) return;
    const Tensor& gradient = result == Result::dv ? p.dv : p.dk;
    store_gradient(p, gradient, key_offset(gradient, s, j, h_kv), d, result == Result::dv ? 1 : p.softmax_scale, x);
  }

 private:
  TILEWISE_INLINE static int64_t dims(const Problem& p, Result result) {
    return result == Result::dv ? p.value_dim : p.head_dim;
  }
};

// ---- Host: size, loads and launches. A library multiplies where it can.

inline Sizing size(const Problem& p, const Settings&) {
  return {.query_rows = Tile<float>::kRows,
          .keys = Tile<float>::kCols,
          .workspace_bytes = static_cast<uint64_t>(lay_out(p, nullptr).bytes)};
}

template <class Product>
Status load_product(const char* name) {
  return load(name, multiply<Product>, sizeof(SharedStorage<Product>));
}

template <class Product>
Status launch_product(const char* name, const Problem& p, const Squares& squares, Result result, void* stream) {
  if (multiply_by_library(p, squares, result, stream)) return {};
  const Grid grid{.blocks = Product::tiles(p, result).count(),
                  .threads = Tile<typename Product::Element>::kThreads,
                  .shared_bytes = sizeof(SharedStorage<Product>)};
  return launch(name, multiply<Product>, grid, stream, p, squares, result);
}

}  // namespace tilewise::cuda::standard
