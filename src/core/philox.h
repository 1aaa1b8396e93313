// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) and the dropout made of it
// (contract C9): the same bits whichever kernel asks, in whatever order.
#pragma once

#include <cstdint>

#include "core/inline.h"

namespace tilewise {

inline constexpr uint32_t kPhiloxFactor[2] = {0xD2511F53, 0xCD9E8D57};
inline constexpr uint32_t kPhiloxStep[2] = {0x9E3779B9, 0xBB67AE85};  // added to the key from round to round
inline constexpr int kPhiloxRounds = 10;

struct PhiloxBlock {
  uint32_t word[4];
};

TILEWISE_INLINE static constexpr void philox_round(uint32_t& c0, uint32_t& c1, uint32_t& c2, uint32_t& c3,
                                                   uint32_t low_key, uint32_t high_key) {
  const uint64_t first = uint64_t{kPhiloxFactor[0]} * c0, third = uint64_t{kPhiloxFactor[1]} * c2;
  c0 = static_cast<uint32_t>(third >> 32) ^ c1 ^ low_key;
  c1 = static_cast<uint32_t>(third);
  c2 = static_cast<uint32_t>(first >> 32) ^ c3 ^ high_key;
  c3 = static_cast<uint32_t>(first);
}

TILEWISE_INLINE static constexpr PhiloxBlock philox(PhiloxBlock counter, uint64_t key) {
  constexpr uint32_t kLowStep = kPhiloxStep[0], kHighStep = kPhiloxStep[1];  // device code has no arrays of the host
  uint32_t low_key = static_cast<uint32_t>(key), high_key = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round, low_key += kLowStep, high_key += kHighStep) {
    philox_round(counter.word[0], counter.word[1], counter.word[2], counter.word[3], low_key, high_key);
  }
  return counter;
}

// Eight keys at consecutive positions share a block: position / 8 names it, position % 8 a half word of it.
inline constexpr int kKeysPerBlock = 8;

TILEWISE_INLINE static constexpr uint32_t dropout_group(int64_t key_position) {
  return static_cast<uint32_t>(key_position >> 3);
}
TILEWISE_INLINE static constexpr int dropout_place(int64_t key_position) { return key_position & 7; }

// Half word number `place` of a block. Words are selected, not indexed: GPUs cannot index registers.
TILEWISE_INLINE static constexpr uint32_t half_word(const PhiloxBlock& block, int place) {
  const uint32_t even = place & 4 ? block.word[2] : block.word[0], odd = place & 4 ? block.word[3] : block.word[1];
  return (place & 2 ? odd : even) >> (place % 2 * 16) & 0xffff;
}

// The 16 random bits of a pair, which is dropped if they are below Dropout::threshold. Numbers are taken mod 2^32.
TILEWISE_INLINE static constexpr uint32_t dropout_bits(uint64_t key, int64_t key_position, int64_t row_position,
                                                       int64_t head, int64_t sequence) {
  const PhiloxBlock block = philox({dropout_group(key_position), static_cast<uint32_t>(row_position),
                                    static_cast<uint32_t>(head), static_cast<uint32_t>(sequence)},
                                   key);
  return half_word(block, dropout_place(key_position));
}

}  // namespace tilewise
