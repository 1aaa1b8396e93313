// Contract C9: dropout is the same bits in every kernel and pass.
#include <array>

#include "tests/contract.h"

namespace tilewise::cases {
namespace {

// ---- Philox 4x32-10 once more, from its paper, and the contract's counter; nothing of the library.

using Counter = std::array<uint32_t, 4>;

Counter philox_round(const Counter& c, uint32_t key0, uint32_t key1) {
  const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
  return {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key0, static_cast<uint32_t>(p1),
          static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key1, static_cast<uint32_t>(p0)};
}

Counter philox10(Counter c, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round, key0 += 0x9E3779B9u, key1 += 0xBB67AE85u) c = philox_round(c, key0, key1);
  return c;
}

struct Pair {
  int64_t key_position, row_position, head, sequence;
};

bool dropped(uint64_t seed, uint64_t offset, double p, const Pair& pair) {
  const auto low = [](int64_t x) { return static_cast<uint32_t>(x); };
  const int64_t group = pair.key_position >= 0 ? pair.key_position / 8 : (pair.key_position - 7) / 8;
  const int64_t place = pair.key_position - 8 * group;
  const Counter words = philox10({low(group), low(pair.row_position), low(pair.head), low(pair.sequence)},
                                 seed + offset * 0x9E3779B97F4A7C15u);
  const uint32_t half = words[place / 2] >> (place % 2 == 0 ? 0 : 16) & 0xffff;
  return half < std::lround(p * 65536);
}

// Salmon et al., Random123 1.x, kat_vectors: philox4x32 10.
TEST(ContractC9, KnownAnswers) {
  EXPECT_EQ(philox10({0, 0, 0, 0}, 0), (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffff),
            (Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// ---- The bits that kernels use, read off their output: q = 0, so each live key weighs 1 / keys, and v is one-hot.

Case exposed() {
  Case c;
  c.batch = 2, c.seqlen_q = 21, c.seqlen_k = 60, c.heads = 6, c.heads_kv = 3, c.head_dim = 8, c.value_dim = 60;
  c.fill = Fill::zero_query, c.dropout_p = 0.4f;
  return c;
}

CaseData exposed_data(const Case& c) {
  CaseData data(c);
  data.v.each([&](int64_t b, int64_t j, int64_t h, int64_t d) { data.v.set(d == j, b, j, h, d); });
  return data;
}

void expect_bits(const Case& c, int64_t row_shift, int64_t key_shift) {
  CaseData data = exposed_data(c);
  if (data.q_positions) {
    data.q_positions.each(
        [&](int64_t b, int64_t i, int64_t, int64_t) { data.q_positions.set(double(i + row_shift), b, i); });
    data.k_positions.each(
        [&](int64_t b, int64_t j, int64_t, int64_t) { data.k_positions.set(double(j + key_shift), b, j); });
  }
  const tw_attention call = data.attention(data.outputs(), Pass::forward);
  const double keep = 65536.0 / static_cast<double>(65536 - std::lround(c.dropout_p * 65536.0));
  each_kernel(Pass::forward, [&](const Kernel& kernel) {
    const Outputs o = run(data, kernel);
    int64_t kept = 0;
    o.out.each([&](int64_t b, int64_t i, int64_t h, int64_t j) {
      const Pair pair{j + key_shift, i + row_shift, h, b};
      const double weight = dropped(call.dropout_seed, call.dropout_offset, c.dropout_p, pair) ? 0 : keep / 60;
      ASSERT_NEAR(o.out.at(b, i, h, j), weight, 1e-7) << "row " << i << " head " << h << " key " << j;
      kept += weight > 0;
    });
    EXPECT_NEAR(o.lse.at(0, 0, 0), std::log(60), 1e-6) << "dropout stays out of lse";
    const double count = static_cast<double>(o.out.count()), p = c.dropout_p;
    EXPECT_LT(std::abs(static_cast<double>(kept) - count * (1 - p)), 4 * std::sqrt(count * p * (1 - p)));
  });
}

TEST(ContractC9, EveryKernelDropsTheSamePairs) {
  expect_bits(exposed(), 60 - 21, 0);
  Case top_left = exposed();
  top_left.top_left = true;
  expect_bits(top_left, 0, 0);
}

TEST(ContractC9, PositionsPlaceThePairs) {
  Case c = exposed();
  c.q_positions = "bq", c.k_positions = "bk";
  for (const auto& [row_shift, key_shift] :
       {std::pair<int64_t, int64_t>{5, 3}, {1000003, 70001}, {-7, -13}, {0, 2147483000}})
    expect_bits(c, row_shift, key_shift);
}

TEST(ContractC9, OtherSeedsAndOffsetsDropOtherPairs) {
  const CaseData data = exposed_data(exposed());
  Case other = exposed();
  other.seed = 2;  // the call's dropout_seed follows it
  const CaseData next = exposed_data(other);
  each_kernel(Pass::forward, [&](const Kernel& kernel) {
    const Outputs a = run(data, kernel), b = run(next, kernel);
    int64_t different = 0;
    a.out.each(
        [&](int64_t s, int64_t i, int64_t h, int64_t j) { different += a.out.at(s, i, h, j) != b.out.at(s, i, h, j); });
    EXPECT_NEAR(static_cast<double>(different) / static_cast<double>(a.out.count()), 2 * 0.4 * 0.6, 0.02);
  });
}

// dv of key j, channel i: the weight of the pair (i, j) if dout is one-hot by row.
TEST(ContractC9, BackwardUsesTheBitsOfForward) {
  Case c = exposed();
  c.heads = c.heads_kv = 3, c.value_dim = 60;
  CaseData data = exposed_data(c);
  data.dout.each([&](int64_t b, int64_t i, int64_t h, int64_t d) { data.dout.set(d == i, b, i, h, d); });
  each_kernel(Pass::backward, [&](const Kernel& kernel) {
    const Outputs o = run(data, kernel);
    o.dv.each([&](int64_t b, int64_t j, int64_t h, int64_t i) {
      if (i < 21) ASSERT_NEAR(o.dv.at(b, j, h, i), o.out.at(b, i, h, j), 1e-7) << "row " << i << " key " << j;
    });
  });
}

TEST(ContractC9, TheExtremesOfThresholds) {
  for (const float p : {1e-6f, 0.999999f}) {  // nothing is dropped; everything is
    Case c = exposed();
    c.dropout_p = p;
    const CaseData data = exposed_data(c);
    each_kernel(Pass::forward, [&](const Kernel& kernel) {
      const Outputs o = run(data, kernel);
      o.out.each([&](int64_t b, int64_t i, int64_t h, int64_t j) {
        ASSERT_NEAR(o.out.at(b, i, h, j), p < 0.5f ? 1.0 / 60 : 0.0, 1e-7);
      });
    });
  }
}

}  // namespace
}  // namespace tilewise::cases
