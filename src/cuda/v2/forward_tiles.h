// The tiles of v2's forward: what one thread block works on. They change the speed, never what is computed.
#pragma once

#include <cstdint>

namespace tilewise::cuda::v2 {

// The shared memory that one thread block may have: it decides which tile fits.
enum class SharedMemory : int {
  kb99,   // sm_86, sm_89, sm_120
  kb163,  // sm_80
  kb227   // sm_90, sm_100
};
inline constexpr int64_t bytes_of(SharedMemory limit) {
  return (limit == SharedMemory::kb227 ? 227 : limit == SharedMemory::kb163 ? 163 : 99) * int64_t{1024};
}
inline constexpr SharedMemory shared_memory_of(int64_t bytes) {
  return bytes >= bytes_of(SharedMemory::kb227)   ? SharedMemory::kb227
         : bytes >= bytes_of(SharedMemory::kb163) ? SharedMemory::kb163
                                                  : SharedMemory::kb99;
}

// A warp owns 32 rows of queries, or shares them with another.
struct ForwardTile {
  SharedMemory least;           // that it is chosen for
  int warps;                    // of a thread block: more of them share a block of keys, with less traffic from L2
  int keys;                     // of a block: more cost fewer fixed steps a key, and more registers
  int split = 1;                // warps that share 32 rows, where O is too wide for one: each scores a part of the keys
                                // and sums a part of O's columns
  int stages = 2;               // blocks of keys in shared memory: half of them are on their way
  int blocks = 1;               // thread blocks of a multiprocessor, which bounds the registers
  int ahead = 2;                // ldmatrix issued before the mma that needs them: hides shared memory's latency
  bool q_in_registers = false;  // spares shared memory its reads where registers are left
  bool streams = true;  // no mask: a thread block goes from tile to tile without draining, at the cost of registers

  constexpr int rows() const { return 32 * warps / split; }
};

constexpr ForwardTile forward_tile(int head_dim, SharedMemory limit) {
  using enum SharedMemory;
  const bool most = limit == kb227, middle = limit == kb163;
  if (head_dim == 64) {  // two thread blocks fill and drain at different times
    if (most) return {.least = kb227, .warps = 4, .keys = 128, .blocks = 2, .ahead = 1};
    return {.least = kb99, .warps = 4, .keys = 64, .blocks = 2, .q_in_registers = true};
  }
  if (head_dim == 96 && limit != kb99) return {.least = kb163, .warps = 8, .keys = 64, .stages = 4};
  if (head_dim <= 128) {
    if (most) return {.least = kb227, .warps = 8, .keys = 64, .stages = 4};
    if (middle) return {.least = kb163, .warps = 8, .keys = 64, .ahead = 1, .streams = false};
    return {.least = kb99, .warps = 4, .keys = 32};
  }
  if (most) return {.least = kb227, .warps = 8, .keys = 64, .split = 2};
  if (middle) return {.least = kb163, .warps = 8, .keys = 32, .split = 2, .ahead = 1};
  // 64 rows of Q would not fit beside two stages of 256 columns.
  return {.least = kb99, .warps = head_dim == 256 ? 2 : 4, .keys = 32, .split = 2, .ahead = 1};
}

// The tile of the kernel with every option: 16 rows a warp, and one block each of keys and values. It fits everywhere.
struct GeneralForwardTile {
  int warps, keys;

  constexpr int rows() const { return 16 * warps; }
};

// The fewer keys, the more registers are left for O; fp32 needs more of them, for factors in two parts.
constexpr GeneralForwardTile general_forward_tile(int head_dim, int element_bytes) {
  if (element_bytes == 4) return {.warps = 4, .keys = head_dim > 128 ? 8 : 32};
  return {.warps = 4, .keys = head_dim > 128 ? 32 : 64};
}

}  // namespace tilewise::cuda::v2
