// Tiles of the backward kernel. Which one serves is decided at run time, by the shared memory that a block may have.
#pragma once

#include <cstdint>

namespace tilewise::cuda::v2 {

// Speed and memory depend on these numbers, results only by rounding.
struct BackwardTile {
  int head_dim;          // columns of Q, K, V and dO in shared memory: D and Dv are padded to it
  int warps;             // of a thread block
  int parts;             // warps that share 32 keys: each sums 1/parts of the columns of their dK and dV in registers.
                         // Of one, P and dS stay there too, which saves a quarter of what is read from shared memory
  int queries;           // of a block of Q and dO
  int own_keys = 32;     // rows of S^T that a warp makes: of 32 a fragment of Q feeds two mma; 16 if queries are few
  int dq_rows = 32;      // rows of dQ that a warp sums: 16 where the columns would not come out in sixteens
  int stages;            // blocks of Q and dO in shared memory: copies run that far ahead, less the one in use
  bool late_dq = false;  // dQ of a block is summed during the next one, so that no warp waits for the others' dS
  int blocks = 1;        // thread blocks that a multiprocessor with room for them should run: bounds the registers
  int shared_kb;         // what the tile is made for

  constexpr int keys() const { return 32 * warps / parts; }
  constexpr int threads() const { return 32 * warps; }
};

inline constexpr BackwardTile kBackwardTiles[] = {
    // 227 KB: compute capability 9.0 and 10.0. Alone, two blocks run side by side; a walk over ranges has no registers
    // for it.
    {.head_dim = 64, .warps = 4, .parts = 1, .queries = 64, .stages = 2, .blocks = 2, .shared_kb = 227},
    {.head_dim = 64, .warps = 8, .parts = 2, .queries = 64, .stages = 3, .late_dq = true, .shared_kb = 227},
    {.head_dim = 96,
     .warps = 8,
     .parts = 2,
     .queries = 64,
     .dq_rows = 16,
     .stages = 3,
     .late_dq = true,
     .shared_kb = 227},
    {.head_dim = 128, .warps = 8, .parts = 2, .queries = 64, .stages = 3, .late_dq = true, .shared_kb = 227},
    {.head_dim = 192, .warps = 8, .parts = 4, .queries = 64, .stages = 2, .late_dq = true, .shared_kb = 227},
    {.head_dim = 256, .warps = 8, .parts = 4, .queries = 64, .stages = 2, .shared_kb = 227},
    // 99 KB: compute capability 8.6, 8.9 and 12.0. With 163 KB (8.0) two blocks run side by side.
    {.head_dim = 64, .warps = 4, .parts = 2, .queries = 32, .stages = 2, .blocks = 2, .shared_kb = 99},
    {.head_dim = 96, .warps = 4, .parts = 2, .queries = 32, .dq_rows = 16, .stages = 2, .blocks = 2, .shared_kb = 99},
    {.head_dim = 128, .warps = 4, .parts = 2, .queries = 32, .stages = 2, .blocks = 2, .shared_kb = 99},
    {.head_dim = 192, .warps = 4, .parts = 4, .queries = 32, .own_keys = 16, .stages = 1, .blocks = 2, .shared_kb = 99},
    {.head_dim = 256, .warps = 4, .parts = 4, .queries = 32, .own_keys = 16, .stages = 1, .blocks = 2, .shared_kb = 99},
};

// fp32: a warp makes 16 rows of S^T or of dP^T, and 16 of dQ. Two thread blocks and more fit into 227 KB. Wide heads
// leave registers for fewer queries, and for a smaller part of dK and dV.
constexpr BackwardTile backward_f32_tile(int head_dim) {
  BackwardTile tile = {.head_dim = head_dim, .warps = 8, .parts = 4, .queries = 32, .stages = 1, .shared_kb = 99};
  tile.own_keys = tile.dq_rows = 16;
  tile.blocks = 2;
  if (head_dim >= 128) tile.queries = 16;
  if (head_dim >= 192) tile.parts = 8;
  if (head_dim == 256) tile.warps = 4, tile.blocks = 3;
  return tile;
}

// `head_dim` is one of those above. Of too little memory, the smallest: a launch then fails and says so.
constexpr BackwardTile backward_tile(int head_dim, int64_t shared_bytes, bool may_be_alone = true) {
  BackwardTile smallest = {};
  for (const BackwardTile& tile : kBackwardTiles) {
    if (tile.head_dim != head_dim || (tile.parts == 1 && !may_be_alone)) continue;
    if (int64_t{tile.shared_kb} << 10 <= shared_bytes) return tile;
    smallest = tile;
  }
  return smallest;
}

}  // namespace tilewise::cuda::v2
