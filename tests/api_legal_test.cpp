// Legal calls that a careless check would refuse.
#include <gtest/gtest.h>

#include <limits>

#include "api_rule.h"

namespace tilewise::test {
namespace {

struct Legal {
  const char* name;
  void (*change)(Call& c);
};
class LegalCall : public testing::TestWithParam<Legal> {};

const Legal kLegal[] = {
    {"AsItIs", [](Call&) {}},
    {"NoLse", [](Call& c) { c.a.lse.dtype = TW_NONE; }},
    {"NoSequences",
     [](Call& c) {
       for (tw_tensor* t : {&c.a.q, &c.a.k, &c.a.v, &c.a.out, &c.a.lse}) t->shape[0] = 0, t->data = nullptr;
     }},
    {"ManySequencesOfNothing",
     [](Call& c) {
       for (tw_tensor* t : {&c.a.q, &c.a.k, &c.a.v, &c.a.out, &c.a.lse}) t->shape[0] = 100000;
       for (tw_tensor* t : {&c.a.q, &c.a.k, &c.a.v, &c.a.out}) t->shape[1] = 0;
       c.a.lse.shape[2] = 0;
     }},
    {"NoRows",
     [](Call& c) {
       for (tw_tensor* t : {&c.a.q, &c.a.out}) t->shape[1] = 0, t->data = nullptr;
       c.a.lse.shape[2] = 0;
     }},
    {"NoKeys",
     [](Call& c) {
       for (tw_tensor* t : {&c.a.k, &c.a.v}) t->shape[1] = 0, t->data = nullptr;
     }},
    {"StridesOfEmptyTensors",
     [](Call& c) {
       for (tw_tensor* t : {&c.a.k, &c.a.v}) t->shape[1] = 0, t->stride[3] = 0, t->stride[0] = kHuge;
     }},
    {"StrideOfASingleElement",
     [](Call& c) {
       for (tw_tensor* t : {&c.a.v, &c.a.out}) t->shape[3] = 1, t->stride[3] = 77;
     }},
    {"RepeatedInputs", [](Call& c) { c.a.k.stride[0] = c.a.q.stride[2] = c.a.v.stride[1] = 0; }},
    {"NegativeStrides",
     [](Call& c) { c.a.k.data = c.k.data() + Call::kHk * Call::kD * (Call::kSk - 1), c.a.k.stride[1] *= -1; }},
    {"ScaleNegativeHuge", [](Call& c) { c.a.flags = TW_SOFTMAX_SCALE, c.a.softmax_scale = -1e30f; }},
    {"ScaleZero", [](Call& c) { c.a.flags = TW_SOFTMAX_SCALE; }},
    {"WindowZero", [](Call& c) { c.a.flags = TW_WINDOW_LEFT | TW_WINDOW_RIGHT; }},
    {"WindowHuge",
     [](Call& c) {
       c.a.flags = TW_WINDOW_LEFT | TW_WINDOW_RIGHT;
       c.a.window_left = c.a.window_right = std::numeric_limits<int64_t>::max();
     }},
    {"ChunkHuge", [](Call& c) { c.a.attention_chunk = std::numeric_limits<int64_t>::max(); }},
    {"SeedWithoutDropout", [](Call& c) { c.a.dropout_seed = 3, c.a.dropout_offset = 4; }},
    {"SmMarginOnTheCpu", [](Call& c) { c.a.sm_margin = 8; }},
    {"Splits", [](Call& c) { c.a.num_splits = 7; }},
    {"ManyThreads", [](Call& c) { c.a.threads = 5000; }},
    {"MaxSeqlenLong", [](Call& c) { c.a.max_seqlen_q = c.a.max_seqlen_k = 1 << 20; }},
    {"MaskOfTheLongest",
     [](Call& c) {
       static const int32_t used[] = {2, 3};
       c.a.seqused_k = tw_tensor_of(used, TW_I32, 2, 1, 1, 1);
       c.a.max_seqlen_k = 3;
       c.a.mask = c.extra(TW_BOOL, 1, 1, 3, 3);
     }},
    {"TailWiderThanTheKeys", [](Call& c) { c.a.flags = TW_MASK_TAIL, c.a.mask = c.extra(TW_BOOL, 2, 1, 3, 9); }},
    {"TailOfNothing", [](Call& c) { c.a.flags = TW_MASK_TAIL, c.a.mask = c.extra(TW_BOOL, 1, 1, 1, 0); }},
    {"QFirstInOneBuffer",
     [](Call& c) {
       static std::vector<float> qkv(Call::kB * Call::kSk * 3 * Call::kHk * Call::kD, 0.5f);
       const tw_tensor all = tw_tensor_of(qkv.data(), TW_F32, Call::kB, Call::kSk, 3 * Call::kHk, Call::kD);
       c.a.k = c.a.v = all;
       c.a.k.shape[2] = c.a.v.shape[2] = Call::kHk;
       c.a.v.data = qkv.data() + Call::kHk * Call::kD, c.a.v.shape[3] = Call::kDv;
     }},
    {"OutBesideQ",  // interleaved with q in one buffer: footprints meet, elements do not
     [](Call& c) {
       static std::vector<float> both(Call::kB * Call::kSq * Call::kH * (Call::kD + Call::kDv), 0.5f);
       c.a.q = c.a.out = tw_tensor_of(both.data(), TW_F32, Call::kB, Call::kSq, Call::kH, Call::kD + Call::kDv);
       c.a.q.shape[3] = Call::kD;
       c.a.out.data = both.data() + Call::kD, c.a.out.shape[3] = Call::kDv;
     }},
};

TEST_P(LegalCall, Runs) {
  Call c;
  GetParam().change(c);
  EXPECT_EQ(c.forward(), TW_OK) << tw_last_error();
}
INSTANTIATE_TEST_SUITE_P(Api, LegalCall, testing::ValuesIn(kLegal),
                         [](const auto& legal) { return std::string(legal.param.name); });
}  // namespace
}  // namespace tilewise::test
