#include <gtest/gtest.h>

#include <vector>

#include "core/philox.h"

namespace tilewise::cpu {
namespace {

// Random123's known answers for philox4x32-10.
TEST(Philox, KnownAnswers) {
  struct Answer {
    PhiloxBlock counter;
    uint64_t key;
    PhiloxBlock want;
  };
  const Answer answers[] = {
      {{0, 0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{~0u, ~0u, ~0u, ~0u}, ~uint64_t{0}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       0x299f31d0a4093822,
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (const auto& [counter, key, want] : answers) {
    const PhiloxBlock got = philox(counter, key);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(got.word[i], want.word[i]);
  }
}

// Contract C9: eight key positions share a block, low half of a word first.
TEST(Philox, DropoutBitsAreHalvesOfABlock) {
  const uint64_t key = 0x299f31d0a4093822;
  for (int64_t position : {int64_t{0}, int64_t{8000}, int64_t{1} << 35}) {
    const uint32_t group = static_cast<uint32_t>(position / 8);
    const PhiloxBlock block = philox({group, 77, 3, 5}, key);
    for (int i = 0; i < 8; ++i) {
      const uint32_t word = block.word[i / 2];
      EXPECT_EQ(dropout_bits(key, position + i, 77, 3, 5), i % 2 ? word >> 16 : word & 0xffff);
    }
  }
}

TEST(Philox, DropoutBitsAreEven) {
  const int bins = 16, in_each = 4096;
  std::vector<int> counts(bins);
  for (int64_t j = 0; j < bins * in_each; ++j) ++counts[dropout_bits(42, j, 9, 1, 0) >> 12];
  for (int count : counts) EXPECT_NEAR(count, in_each, 350);  // more than five standard deviations
}

}  // namespace
}  // namespace tilewise::cpu
