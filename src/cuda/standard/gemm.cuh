// A matrix product of one thread block: C = A B, a tile of kRows x kCols of C in fp32 sums, over all of the depth.
//
// A product (products.cuh) says where A and B lie, which lines of them count, and what becomes of C. Tiles of both go
// through a ring of stages in shared memory, by asynchronous copies of 16 bytes; rows that start elsewhere are copied
// element by element, which is slower. 16-bit types are multiplied by the tensor cores, fp32 by fused multiply-adds.
#pragma once

#include "core/mask.h"
#include "core/numbers.h"
#include "cuda/common/element.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/ptx/sm80.cuh"
#include "cuda/standard/squares.cuh"

namespace tilewise::cuda::standard {

template <class E>
struct Tile {
  static constexpr int kThreads = sizeof(E) == 2 ? 128 : 256, kRows = 128, kCols = 128;
  static constexpr int kDepth = 128 / sizeof(E);                // of a stage
  static constexpr int kCopy = 16 / sizeof(E);                  // elements of one asynchronous copy
  static constexpr int kStages = 2;                             // one under way while the other is multiplied
  static constexpr int kBlocksAtOnce = sizeof(E) == 2 ? 2 : 1;  // of a multiprocessor, by registers
};

// A matrix in memory. A line is a run of elements side by side: along the depth, or across it.
template <class E>
struct Operand {
  const E* data;                // line 0 of the first head
  int64_t stride, head_stride;  // from line to line, from head to head
  KeyRange lines, inside;  // lines, and elements of a line, that count; the others are zeros; inside.lo % kPiece == 0
  const float* lse = nullptr;  // [heads][lines]  a line counts as zeros where it is -inf; null: all count
  int64_t lse_head_stride = 0;
  bool aligned = true;  // every line starts at a multiple of 16 bytes
};

template <class E>
TILEWISE_DEVICE bool starts_aligned(const E* data, int64_t stride, int64_t head_stride) {
  constexpr int64_t kElements = Tile<E>::kCopy;
  return reinterpret_cast<uint64_t>(data) % 16 == 0 && stride % kElements == 0 && head_stride % kElements == 0;
}

// A tile of an operand in shared memory. The padding makes eight lines that are read at once start in different banks.
template <class E, int Lines, int Length>
struct SharedTile {
  static constexpr int kPitch = Length + Tile<E>::kCopy;
  E element[Lines][kPitch];
};

// Along: the lines of the operand run along the depth; else the tile has a line for each step of the depth.
template <class E, bool Along, int Extent>
using OperandTile =
    std::conditional_t<Along, SharedTile<E, Extent, Tile<E>::kDepth>, SharedTile<E, Tile<E>::kDepth, Extent>>;

template <class Product>
struct SharedStorage {
  using E = typename Product::Element;
  using T = Tile<E>;
  struct Stage {
    OperandTile<E, Product::kAlongA, T::kRows> a;
    OperandTile<E, Product::kAlongB, T::kCols> b;
  };
  union {
    Stage stages[T::kStages];
    // C, on its way to memory. The padding keeps what a warp writes at once in different banks.
    float sums[T::kRows][T::kCols + 8];
  };
};

// One thread's part of an operand's copies: in each stage the same elements of every few lines.
template <class E, bool Along, int Extent>
class Copier {
  using T = Tile<E>;
  static constexpr int kLines = Along ? Extent : T::kDepth, kLength = Along ? T::kDepth : Extent;
  static constexpr int kCopiesOfLine = kLength / T::kCopy, kStep = T::kThreads / kCopiesOfLine;
  static_assert(T::kThreads % kCopiesOfLine == 0 && kLines % kStep == 0);

 public:
  // Of a tile that begins `across` the depth, from depth k on.
  TILEWISE_DEVICE Copier(const Operand<E>& from, int64_t across, int64_t k)
      : from_(from), depth_(k + (Along ? element() : line())), lse_(from.lse ? from.lse + depth_ : nullptr) {
    const int64_t other = across + (Along ? line() : element());
    src_ = from.data + (Along ? other * from.stride + depth_ : depth_ * from.stride + other);
    fixed_ = Along ? lines_that_count(other) : elements_that_count(other);
  }

  // Starts the copy of a stage and goes on to the next.
  TILEWISE_DEVICE void copy(OperandTile<E, Along, Extent>& to) {
    const Part moving = Along ? elements_that_count(depth_) : lines_that_count(depth_);
    const Part lines = Along ? fixed_ : moving;
    const int count = Along ? moving.end : fixed_.end;
    const auto count_at = [&](int l) {
      bool counts = l >= lines.begin && l < lines.end;
      if (counts && lse_) counts = lse_[l] != -INFINITY;
      return counts ? count : 0;
    };
    if (from_.aligned) {
#pragma unroll
      for (int l = 0; l < kLines; l += kStep) {
        ptx::cp_async_first(ptx::smem_addr(&to.element[line() + l][element()]), src_ + l * from_.stride,
                            count_at(l) * static_cast<int>(sizeof(E)));
      }
    } else {
#pragma unroll 1  // slow in any case: it must not take registers from the other path
      for (int l = 0; l < kLines; l += kStep) {
        const int n = count_at(l);
        for (int i = 0; i < T::kCopy; ++i) {
          to.element[line() + l][element() + i] = i < n ? src_[l * from_.stride + i] : element_of<E>(0);
        }
      }
    }
    move(T::kDepth);
  }

  // Back to depth k, of the next head.
  TILEWISE_DEVICE void begin_next_head(int64_t k) {
    move(k + (Along ? element() : line()) - depth_);
    src_ += from_.head_stride;
    if (lse_) lse_ += from_.lse_head_stride;
  }

 private:
  struct Part {
    int begin, end;
  };
  static TILEWISE_DEVICE int line() { return threadIdx.x / kCopiesOfLine; }
  static TILEWISE_DEVICE int element() { return threadIdx.x % kCopiesOfLine * T::kCopy; }

  // Which of the lines from n on; of the kCopy elements from n on, all or the first few.
  TILEWISE_DEVICE Part lines_that_count(int64_t n) const {
    return {static_cast<int>(clamp(from_.lines.lo - n, 0, kLines)),
            static_cast<int>(clamp(from_.lines.hi - n, 0, kLines))};
  }
  TILEWISE_DEVICE Part elements_that_count(int64_t n) const {
    return {0, n < from_.inside.lo ? 0 : static_cast<int>(clamp(from_.inside.hi - n, 0, T::kCopy))};
  }

  TILEWISE_DEVICE void move(int64_t steps) {
    depth_ += steps;
    src_ += Along ? steps : steps * from_.stride;
    if (lse_) lse_ += steps;
  }

  const Operand<E>& from_;
  int64_t depth_;     // of the next stage, where this thread's part begins
  const E* src_;      // the same place in memory
  const float* lse_;  // of that line; null: all lines count
  Part fixed_;        // what is the same in all stages: lines if they run along the depth, else elements
};

// ---- A stage's product, tensor cores: four warps, two down and two across, of 64 x 64 each.

template <class Product>
class TensorCoreSums {
  using E = typename Product::Element;
  using Storage = SharedStorage<Product>;
  static constexpr int kWarpRows = 64, kWarpCols = 64, kStep = 16;

 public:
  TILEWISE_DEVICE void add(const typename Storage::Stage& stage) {
#pragma unroll
    for (int k = 0; k < Tile<E>::kDepth; k += kStep) {
      uint32_t a[4][4];
#pragma unroll
      for (int m = 0; m < 4; ++m) load_a(a[m], stage.a, row() + 16 * m, k);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        uint32_t b[4];
        load_b(b, stage.b, col() + 16 * n, k);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          ptx::mma<E>(sums_[m][2 * n], a[m], b[0], b[1]);
          ptx::mma<E>(sums_[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  TILEWISE_DEVICE void store(Storage& shared) const {
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float* to = &shared.sums[row() + 16 * m + 8 * half + lane() / 4][col() + 8 * n + lane() % 4 * 2];
          *reinterpret_cast<float2*>(to) = {sums_[m][n][2 * half], sums_[m][n][2 * half + 1]};
        }
      }
    }
  }

 private:
  static TILEWISE_DEVICE int row() { return threadIdx.x / 32 % 2 * kWarpRows; }
  static TILEWISE_DEVICE int col() { return threadIdx.x / 64 * kWarpCols; }

  // Rows [m, m + 16) of A at depth [k, k + 16). Four matrices of 8 x 8: the second is eight rows down, the third eight
  // steps deeper.
  template <class A>
  static TILEWISE_DEVICE void load_a(uint32_t (&r)[4], const A& a, int m, int k) {
    if constexpr (Product::kAlongA) {
      ptx::ldmatrix(r, ptx::smem_addr(&a.element[m + lane() % 16][k + lane() / 16 * 8]));
    } else {
      ptx::ldmatrix_trans(r, ptx::smem_addr(&a.element[k + lane() % 8 + lane() / 16 * 8][m + lane() / 8 % 2 * 8]));
    }
  }
  // Columns [n, n + 16) of B at the same depth: the second matrix is eight steps deeper, the third eight columns on.
  template <class B>
  static TILEWISE_DEVICE void load_b(uint32_t (&r)[4], const B& b, int n, int k) {
    if constexpr (Product::kAlongB) {
      ptx::ldmatrix(r, ptx::smem_addr(&b.element[n + lane() % 8 + lane() / 16 * 8][k + lane() / 8 % 2 * 8]));
    } else {
      ptx::ldmatrix_trans(r, ptx::smem_addr(&b.element[k + lane() % 16][n + lane() / 16 * 8]));
    }
  }

  float sums_[4][8][4] = {};  // [16 rows][8 columns] by the fragments of mma.m16n8k16
};

// ---- The same in fp32: a thread has rows ty + 16 i and columns tx + 16 j.

template <class Product>
class Fp32Sums {
  using Storage = SharedStorage<Product>;
  static constexpr int kStep = 4;

 public:
  TILEWISE_DEVICE void add(const typename Storage::Stage& stage) {
#pragma unroll
    for (int k = 0; k < Tile<float>::kDepth; k += kStep) {
#pragma unroll
      for (int half = 0; half < 8; half += 4) {  // of the columns: all of them need more registers than there are
        float b[4][kStep];
#pragma unroll
        for (int j = 0; j < 4; ++j) load<Product::kAlongB>(b[j], stage.b, tx() + 16 * (half + j), k);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float a[kStep];
          load<Product::kAlongA>(a, stage.a, ty() + 16 * i, k);
#pragma unroll
          for (int step = 0; step < kStep; ++step) {
#pragma unroll
            for (int j = 0; j < 4; ++j) sums_[i][half + j] += a[step] * b[j][step];
          }
        }
      }
    }
  }

  TILEWISE_DEVICE void store(Storage& shared) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
      for (int j = 0; j < 8; ++j) shared.sums[ty() + 16 * i][tx() + 16 * j] = sums_[i][j];
    }
  }

 private:
  static TILEWISE_DEVICE int ty() { return threadIdx.x / 16; }
  static TILEWISE_DEVICE int tx() { return threadIdx.x % 16; }

  template <bool Along, class A>
  static TILEWISE_DEVICE void load(float (&x)[kStep], const A& tile, int n, int k) {
    if constexpr (Along) {
      const float4 four = *reinterpret_cast<const float4*>(&tile.element[n][k]);
      x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
    } else {
#pragma unroll
      for (int step = 0; step < kStep; ++step) x[step] = tile.element[k + step][n];
    }
  }

  float sums_[8][8] = {};
};

template <class Product>
using Sums =
    std::conditional_t<std::is_same_v<typename Product::Element, float>, Fp32Sums<Product>, TensorCoreSums<Product>>;

// ---- The product.

// C = A B: heads one after the other, each over the whole depth.
template <class Product>
TILEWISE_DEVICE void multiply_tile(const Product& product, SharedStorage<Product>& shared) {
  using E = typename Product::Element;
  using T = Tile<E>;
  const KeyRange depth = product.depth;
  const int64_t steps = depth.empty() ? 0 : product.heads * ceil_div(depth.hi - depth.lo, T::kDepth);
  Copier<E, Product::kAlongA, T::kRows> a(product.a, product.row, depth.lo);
  Copier<E, Product::kAlongB, T::kCols> b(product.b, product.col, depth.lo);
  int64_t k = depth.lo;         // of the next stage to copy
  int to_fill = 0, filled = 0;  // stages of the ring
  const auto copy_stage = [&](bool exists) {
    if (exists) {
      a.copy(shared.stages[to_fill].a);
      b.copy(shared.stages[to_fill].b);
      to_fill = to_fill + 1 == T::kStages ? 0 : to_fill + 1;
      k += T::kDepth;
      if (product.heads > 1 && k >= depth.hi) {
        a.begin_next_head(depth.lo), b.begin_next_head(depth.lo);
        k = depth.lo;
      }
    }
    ptx::cp_async_commit();
  };

  Sums<Product> sums;
#pragma unroll
  for (int step = 0; step < T::kStages - 1; ++step) copy_stage(step < steps);
  for (int64_t step = 0; step < steps; ++step) {
    ptx::cp_async_wait<T::kStages - 2>();
    __syncthreads();
    copy_stage(step + T::kStages - 1 < steps);
    sums.add(shared.stages[filled]);
    filled = filled + 1 == T::kStages ? 0 : filled + 1;
  }
  ptx::cp_async_wait<0>();
  __syncthreads();
  sums.store(shared);
  __syncthreads();
}

// Product: Product(problem, squares, result, block), nothing_to_do(), a, b, row, col, heads, depth,
// store(row, col, kPiece sums).
template <class Product>
__global__ __launch_bounds__(
    Tile<typename Product::Element>::kThreads,
    Tile<typename Product::Element>::kBlocksAtOnce) void multiply(const __grid_constant__ Problem p,
                                                                  const __grid_constant__ Squares squares,
                                                                  Result result) {
  using T = Tile<typename Product::Element>;
  extern __shared__ __align__(128) char memory[];
  auto& shared = *reinterpret_cast<SharedStorage<Product>*>(memory);
  {
    const Product product(p, squares, result, blockIdx.x);
    if (product.nothing_to_do()) return;
    multiply_tile(product, shared);
  }
  const Product product(p, squares, result, ptx::block_index());  // anew: during the loop it would need registers
  constexpr int kPieces = T::kCols / kPiece;
  for (int n = threadIdx.x; n < T::kRows * kPieces; n += T::kThreads) {
    const int row = n / kPieces, col = n % kPieces * kPiece;
    float x[kPiece];
#pragma unroll
    for (int i = 0; i < kPiece; ++i) x[i] = shared.sums[row][col + i];
    product.store(product.row + row, product.col + col, x);
  }
}

}  // namespace tilewise::cuda::standard
