// The tiles of v2's forward: what one thread block works on. They change the speed, never what is computed.
#pragma once

#include <climits>
#include <cstdint>

namespace tilewise::cuda::v2 {

// What the fast kernels know: one length for all sequences, without a mask or with the causal one; or sequences of any
// length and place, causal or not.
enum class MaskKind : int { none, causal, lengths };

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

inline constexpr int kAnyKeys = INT_MAX;  // of stream_keys

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
  int stream_keys = 0;  // with at most so many keys a thread block goes from tile to tile without draining: beyond
                        // it pays more that the hardware balances the load. 0 = never, which spares registers

  constexpr int rows() const { return 32 * warps / split; }
};

constexpr ForwardTile forward_tile(int head_dim, MaskKind mask, SharedMemory limit) {
  using enum SharedMemory;
  const bool most = limit == kb227, middle = limit == kb163, full = mask == MaskKind::none;
  if (head_dim == 64) {  // two thread blocks fill and drain at different times
    if (!most || mask == MaskKind::lengths) {
      return {.least = kb99, .warps = 4, .keys = 64, .blocks = 2, .q_in_registers = true};
    }
    return {.least = kb227, .warps = 4, .keys = 128, .blocks = 2, .ahead = 1, .stream_keys = full ? kAnyKeys : 0};
  }
  if (head_dim == 96) return {.least = kb99, .warps = 4, .keys = 64, .blocks = 2};
  if (head_dim == 128) {  // with lengths fewer keys: the place of a sequence needs registers too
    if (most && mask == MaskKind::lengths) return {.least = kb227, .warps = 4, .keys = 32, .stages = 4, .blocks = 2};
    if (most) return {.least = kb227, .warps = 4, .keys = 64, .blocks = 2, .ahead = 1};
    if (middle) return {.least = kb163, .warps = 8, .keys = 32, .stages = 4};
    return {.least = kb99, .warps = 4, .keys = 32};
  }
  if (most && full) return {.least = kb227, .warps = 8, .keys = 64, .split = 2, .stream_keys = kAnyKeys};
  if (most) return {.least = kb227, .warps = 8, .keys = 64, .split = 2, .ahead = 1, .stream_keys = 1024};
  if (middle) return {.least = kb163, .warps = 8, .keys = 32, .split = 2, .ahead = 1};
  // 64 rows of Q would not fit beside two stages of 256 columns.
  return {.least = kb99, .warps = head_dim == 256 ? 2 : 4, .keys = 32, .split = 2, .ahead = 1};
}

// The tile of the kernel with every option: one block each of keys and values. It fits everywhere.
struct GeneralForwardTile {
  int warps;
  int strips;  // of 16 rows a warp: two make twice of each fragment of keys, as far as registers go
  int keys;    // of a block: the fewer, the more registers are left for O

  constexpr int rows() const { return 16 * strips * warps; }
};

constexpr GeneralForwardTile general_forward_tile(int head_dim, int element_bytes) {
  if (element_bytes == 4) return {.warps = 4, .strips = 1, .keys = head_dim > 128 ? 8 : 32};  // factors in two parts
  if (head_dim > 128) return {.warps = 4, .strips = 1, .keys = 32};
  return {.warps = 4, .strips = 2, .keys = head_dim == 64 ? 64 : 32};
}

}  // namespace tilewise::cuda::v2
