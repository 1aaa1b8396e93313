// Tiles of the backward kernel. Which one serves is decided at run time, by the shared memory that a block may have.
#pragma once

#include <cstdint>

namespace tilewise::cuda::v2 {

// Speed and memory depend on these numbers, results only by rounding.
struct BackwardTile {
  int head_dim;       // columns of Q, K, V and dO in shared memory: D and Dv are padded to it
  int warps;          // of a thread block
  int parts;          // warps that share 32 keys: each sums 1/parts of the columns of their dK and dV in registers.
                      // Of one, P and dS stay there too, which saves a quarter of what is read from shared memory
  int queries;        // of a block of Q and dO
  int own_keys;       // rows of S^T that a warp makes: 32, so that a fragment of Q feeds two mma; 16 if queries are few
  int dq_rows;        // rows of dQ that a warp sums: 32, or 16 where the columns would not come out in sixteens
  int stages;         // blocks of Q and dO in shared memory: copies run that far ahead, less the one in use
  bool late_dq;       // dQ of a block is summed during the next one, so that no warp waits for the others' dS
  int blocks;         // thread blocks that a multiprocessor with room for them should run: bounds the registers
  int shared_kbytes;  // what the tile is made for

  constexpr int keys() const { return 32 * warps / parts; }
  constexpr int threads() const { return 32 * warps; }
};

inline constexpr BackwardTile kBackwardTiles[] = {
    // 227 KB: compute capability 9.0 and 10.0. Alone, two blocks run side by side; a walk over ranges has no registers
    // for it.
    {64, 4, 1, 64, 32, 32, 2, false, 2, 227},
    {64, 8, 2, 64, 32, 32, 3, true, 1, 227},
    {96, 8, 2, 64, 32, 16, 3, true, 1, 227},
    {128, 8, 2, 64, 32, 32, 3, true, 1, 227},
    {192, 8, 4, 64, 32, 32, 2, true, 1, 227},
    {256, 8, 4, 64, 32, 32, 2, false, 1, 227},
    // 99 KB: compute capability 8.6, 8.9 and 12.0. With 163 KB (8.0) two blocks run side by side.
    {64, 4, 2, 32, 32, 32, 2, false, 2, 99},
    {96, 4, 2, 32, 32, 16, 2, false, 2, 99},
    {128, 4, 2, 32, 32, 32, 2, false, 2, 99},
    {192, 4, 4, 32, 16, 32, 1, false, 2, 99},
    {256, 4, 4, 32, 16, 32, 1, false, 2, 99},
};

// fp32: a warp makes 16 rows of S^T or of dP^T, and 16 of dQ. Two thread blocks and more fit into 227 KB.
inline constexpr BackwardTile kBackwardF32Tiles[] = {
    {64, 8, 4, 32, 16, 16, 1, false, 2, 99},  {96, 8, 4, 32, 16, 16, 1, false, 2, 99},
    {128, 8, 4, 16, 16, 16, 1, false, 2, 99}, {192, 8, 8, 16, 16, 16, 1, false, 2, 99},
    {256, 4, 8, 16, 16, 16, 1, false, 3, 99},
};

constexpr BackwardTile backward_f32_tile(int head_dim) {
  for (const BackwardTile& tile : kBackwardF32Tiles) {
    if (tile.head_dim == head_dim) return tile;
  }
  return {};
}

// `head_dim` is one of those above. Of too little memory, the smallest: a launch then fails and says so.
constexpr BackwardTile backward_tile(int head_dim, int64_t shared_bytes, bool may_be_alone = true) {
  BackwardTile smallest = {};
  for (const BackwardTile& tile : kBackwardTiles) {
    if (tile.head_dim != head_dim || (tile.parts == 1 && !may_be_alone)) continue;
    if (int64_t{tile.shared_kbytes} << 10 <= shared_bytes) return tile;
    smallest = tile;
  }
  return smallest;
}

}  // namespace tilewise::cuda::v2
