// tw_attention_merge: parts over disjoint keys become the whole; empty and single parts to the bit.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "api_call.h"

namespace tilewise::test {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();

// Parts of B = 1, Sq = 2, H = 2, Dv = 70 (more than one block of columns).
struct Parts {
  static constexpr int64_t kSq = 2, kH = 2, kDv = 70, kRows = kSq * kH;
  std::vector<float> outs, lses, out = Call::untouched(kRows * kDv), lse = Call::untouched(kRows);
  tw_merge m;

  explicit Parts(int64_t parts) : outs(Call::numbers(parts * kRows * kDv, 9)), lses(Call::numbers(parts * kRows, 10)) {
    TW_INIT(m);
    m.device_type = TW_CPU;
    m.parts = parts;
    m.out_part_stride = kRows * kDv;
    m.lse_part_stride = kRows;
    m.out_parts = tw_tensor_of(outs.data(), TW_F32, 1, kSq, kH, kDv);
    m.lse_parts = tw_tensor_of(lses.data(), TW_F32, 1, kH, kSq, 1);
    m.out = tw_tensor_of(out.data(), TW_F32, 1, kSq, kH, kDv);
    m.lse = tw_tensor_of(lse.data(), TW_F32, 1, kH, kSq, 1);
  }
  tw_status merge() { return tw_attention_merge(&m, nullptr); }
  // Row i of head h.
  float& part_lse(int64_t part, int64_t i, int64_t h) { return lses[static_cast<size_t>(part * kRows + h * kSq + i)]; }
  float* part_out(int64_t part, int64_t i, int64_t h) {
    return &outs[static_cast<size_t>((part * kRows + i * kH + h) * kDv)];
  }
  bool untouched() const { return Call::all_untouched(out) && Call::all_untouched(lse); }
};

TEST(Merge, IsTheSumWeightedByLse) {
  for (int64_t parts : {2, 3, 17}) {
    Parts p(parts);
    ASSERT_EQ(p.merge(), TW_OK) << tw_last_error();
    for (int64_t i = 0; i < Parts::kSq; ++i) {
      for (int64_t h = 0; h < Parts::kH; ++h) {
        double sum = 0;
        for (int64_t part = 0; part < parts; ++part) sum += std::exp(double{p.part_lse(part, i, h)});
        EXPECT_NEAR(p.lse[static_cast<size_t>(h * Parts::kSq + i)], std::log(sum), 1e-6);
        for (int64_t d = 0; d < Parts::kDv; ++d) {
          double value = 0;
          for (int64_t part = 0; part < parts; ++part) {
            value += std::exp(double{p.part_lse(part, i, h)}) / sum * double{p.part_out(part, i, h)[d]};
          }
          EXPECT_NEAR(p.out[static_cast<size_t>((i * Parts::kH + h) * Parts::kDv + d)], value, 1e-6);
        }
      }
    }
  }
}

TEST(Merge, HugeAndTinyLse) {
  for (const int64_t huge : {0, 1, 2}) {
    Parts p(3);
    std::fill(p.lses.begin(), p.lses.end(), -1e30f);
    std::fill_n(p.lses.begin() + huge * Parts::kRows, Parts::kRows, 1e30f);
    ASSERT_EQ(p.merge(), TW_OK);
    const auto only = p.outs.begin() + huge * Parts::kRows * Parts::kDv;
    EXPECT_EQ(p.out, std::vector<float>(only, only + Parts::kRows * Parts::kDv)) << "part " << huge;
    EXPECT_EQ(p.lse[0], 1e30f) << "part " << huge;
  }
}

TEST(Merge, EmptyPartsAreNotLookedAt) {
  Parts p(3);
  std::fill(p.lses.begin(), p.lses.begin() + Parts::kRows, kEmpty);
  std::fill(p.lses.begin() + 2 * Parts::kRows, p.lses.end(), kEmpty);
  for (int64_t at = 0; at < Parts::kRows * Parts::kDv; ++at) {
    p.outs[static_cast<size_t>(at)] = p.outs[static_cast<size_t>(2 * Parts::kRows * Parts::kDv + at)] = NAN;
  }
  ASSERT_EQ(p.merge(), TW_OK);
  const auto only = p.outs.begin() + Parts::kRows * Parts::kDv;
  EXPECT_EQ(p.out, std::vector<float>(only, only + Parts::kRows * Parts::kDv)) << "to the bit";
  EXPECT_EQ(p.lse, std::vector<float>(p.lses.begin() + Parts::kRows, p.lses.begin() + 2 * Parts::kRows));
}

TEST(Merge, NothingAtAll) {
  for (int64_t parts : {0, 4}) {
    Parts p(parts);
    std::fill(p.lses.begin(), p.lses.end(), kEmpty);
    ASSERT_EQ(p.merge(), TW_OK) << tw_last_error();
    EXPECT_EQ(p.out, std::vector<float>(p.out.size(), 0.0f));
    EXPECT_EQ(p.lse, std::vector<float>(p.lse.size(), kEmpty));
  }
}

TEST(Merge, NanIsNotHidden) {
  Parts p(2);
  p.part_lse(1, 0, 0) = NAN;
  ASSERT_EQ(p.merge(), TW_OK);
  EXPECT_TRUE(std::isnan(p.out[0]));
  EXPECT_TRUE(std::isnan(p.lse[0]));
  EXPECT_FALSE(std::isnan(p.out.back()));
}

TEST(Merge, WritesSixteenBitTypesAndSkipsLse) {
  Parts p(1);
  std::vector<uint16_t> half(p.out.size(), 0x1234);
  std::fill(p.outs.begin(), p.outs.end(), 1.5f);
  p.m.lse.dtype = TW_NONE;
  p.m.out = tw_tensor_of(half.data(), TW_F16, 1, Parts::kSq, Parts::kH, Parts::kDv);
  ASSERT_EQ(p.merge(), TW_OK) << tw_last_error();
  EXPECT_EQ(half, std::vector<uint16_t>(half.size(), 0x3E00));
  p.m.out.dtype = TW_BF16;
  ASSERT_EQ(p.merge(), TW_OK) << tw_last_error();
  EXPECT_EQ(half, std::vector<uint16_t>(half.size(), 0x3FC0));
}

TEST(Merge, SameBitsAtAnyCountOfThreads) {
  Parts one(9), many(9);
  one.m.threads = 1;
  many.m.threads = 6;
  ASSERT_EQ(one.merge(), TW_OK);
  ASSERT_EQ(many.merge(), TW_OK);
  EXPECT_EQ(one.out, many.out);
  EXPECT_EQ(one.lse, many.lse);
}

struct Rule {
  const char* name;
  void (*break_it)(Parts& p);
  tw_status code;
  const char* message;
};
constexpr tw_status kInvalid = TW_INVALID_ARGUMENT;
constexpr int64_t kHuge = int64_t{1} << 62;

const Rule kRules[] = {
    {"Size", [](Parts& p) { p.m.struct_size = 0; }, kInvalid, "merge.struct_size is 0"},
    {"Device", [](Parts& p) { p.m.device_type = 0; }, kInvalid, "device_type is 0"},
    {"GpuIndex", [](Parts& p) { p.m.device_type = TW_CUDA, p.m.device_index = -1; }, kInvalid, "device_index is -1"},
    {"Index", [](Parts& p) { p.m.device_index = 2; }, kInvalid, "device_index is 2"},
    {"Threads", [](Parts& p) { p.m.threads = -1; }, kInvalid, "threads is -1"},
    {"Parts", [](Parts& p) { p.m.parts = -2; }, kInvalid, "parts is -2"},
    {"Stride", [](Parts& p) { p.m.out_part_stride = kHuge; }, kInvalid, "out_part_stride is 46116"},
    {"LseStride", [](Parts& p) { p.m.lse_part_stride = -kHuge; }, kInvalid, "lse_part_stride is -46116"},
    {"NoOut", [](Parts& p) { p.m.out.dtype = TW_NONE; }, kInvalid, "out is absent"},
    {"NoParts", [](Parts& p) { p.m.out_parts.dtype = TW_NONE; }, kInvalid, "out_parts is absent"},
    {"NoLseParts", [](Parts& p) { p.m.lse_parts.dtype = TW_NONE; }, kInvalid, "lse_parts is absent"},
    {"PartsType", [](Parts& p) { p.m.out_parts.dtype = TW_BF16; }, kInvalid, "out_parts.dtype is bf16: must be fp32"},
    {"LseType", [](Parts& p) { p.m.lse.dtype = TW_F16; }, kInvalid, "lse.dtype is fp16: must be fp32"},
    {"OutType", [](Parts& p) { p.m.out.dtype = TW_I32; }, kInvalid, "out.dtype is int32"},
    {"PartsShape", [](Parts& p) { p.m.out_parts.shape[3] = 3; }, kInvalid,
     "out_parts.shape[3] is 3 but out.shape[3] is 70"},
    {"LseShape", [](Parts& p) { p.m.lse.shape[1] = 1; }, kInvalid, "lse.shape[1] is 1 but out.shape[2] is 2"},
    {"LsePartsShape", [](Parts& p) { p.m.lse_parts.shape[2] = 1; }, kInvalid, "lse_parts.shape[2] is 1"},
    {"LastStride", [](Parts& p) { p.m.out_parts.stride[3] = 2; }, kInvalid, "out_parts.stride[3] is 2"},
    {"Overlap", [](Parts& p) { p.m.out.stride[1] = 70; }, kInvalid, "out.stride"},
    {"Null", [](Parts& p) { p.m.out.data = nullptr; }, kInvalid, "out.data is NULL"},
    {"NullParts", [](Parts& p) { p.m.lse_parts.data = nullptr; }, kInvalid, "lse_parts.data is NULL"},
    {"InPlace", [](Parts& p) { p.m.out.data = p.m.out_parts.data; }, kInvalid, "out shares memory with out_parts"},
    {"OutIsTheSecondPart", [](Parts& p) { p.m.out.data = p.outs.data() + Parts::kRows * Parts::kDv; }, kInvalid,
     "out shares memory with out_parts"},
    {"OutIsInTheLastPart", [](Parts& p) { p.m.out.data = p.outs.data() + 2 * Parts::kRows * Parts::kDv - 1; }, kInvalid,
     "out shares memory with out_parts"},
    {"LseIsTheSecondPart", [](Parts& p) { p.m.lse.data = p.lses.data() + Parts::kRows; }, kInvalid,
     "lse shares memory with lse_parts"},
    {"LseIsInTheSecondPart", [](Parts& p) { p.m.lse.data = p.outs.data() + Parts::kRows * Parts::kDv + 9; }, kInvalid,
     "lse shares memory with out_parts"},
    {"LseAmongInterleavedParts",
     [](Parts& p) {
       p.m.out_part_stride = Parts::kDv;
       p.m.out_parts.stride[2] = 2 * Parts::kDv, p.m.out_parts.stride[1] = 4 * Parts::kDv;
       p.m.lse.data = p.outs.data() + 3 * Parts::kDv;
     },
     kInvalid, "lse shares memory with out_parts"},
    {"OutIsABackwardPart",
     [](Parts& p) {
       p.m.out_parts.data = p.outs.data() + Parts::kRows * Parts::kDv;
       p.m.out_part_stride = -Parts::kRows * Parts::kDv;
       p.m.out.data = p.outs.data();
     },
     kInvalid, "out shares memory with out_parts"},
    {"LseInPlace", [](Parts& p) { p.m.lse.data = p.m.lse_parts.data; }, kInvalid, "lse shares memory with lse_parts"},
};

class MergeRule : public testing::TestWithParam<Rule> {};

TEST_P(MergeRule, IsRefusedByName) {
  Parts p(2);
  GetParam().break_it(p);
  EXPECT_EQ(p.merge(), GetParam().code) << tw_last_error();
  EXPECT_TRUE(last_error_has(GetParam().message)) << tw_last_error();
  EXPECT_TRUE(p.untouched());
}
INSTANTIATE_TEST_SUITE_P(Api, MergeRule, testing::ValuesIn(kRules),
                         [](const auto& rule) { return std::string(rule.param.name); });

// Between parts that leave room, an output may lie.
TEST(Merge, OutputsBetweenParts) {
  Parts p(2), apart(2);
  ASSERT_EQ(apart.merge(), TW_OK);
  std::vector<float> memory(3 * Parts::kRows * Parts::kDv);
  std::copy(p.outs.begin(), p.outs.begin() + Parts::kRows * Parts::kDv, memory.begin());
  std::copy(p.outs.begin() + Parts::kRows * Parts::kDv, p.outs.end(), memory.begin() + 2 * Parts::kRows * Parts::kDv);
  p.m.out_parts.data = memory.data();
  p.m.out_part_stride = 2 * Parts::kRows * Parts::kDv;
  p.m.out.data = memory.data() + Parts::kRows * Parts::kDv;
  ASSERT_EQ(p.merge(), TW_OK) << tw_last_error();
  EXPECT_EQ(std::memcmp(p.m.out.data, apart.out.data(), apart.out.size() * sizeof(float)), 0);
}

TEST(Merge, NullIsRefused) {
  EXPECT_EQ(tw_attention_merge(nullptr, nullptr), kInvalid);
  EXPECT_TRUE(last_error_has("merge is NULL"));
}

}  // namespace
}  // namespace tilewise::test
