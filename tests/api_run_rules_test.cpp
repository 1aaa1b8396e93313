// Rules of what only a run can see, pointers and numbers in memory, and rules of the backward pass (docs/contract.md
// C6).
#include <gtest/gtest.h>

#include "api_rule.h"

namespace tilewise::test {
namespace {

// Rules of what only a run can see: pointers and numbers in memory.
const Rule kRunRules[] = {
    {"NullQ", [](Call& c) { c.a.q.data = nullptr; }, kInvalid, "q.data is NULL"},
    {"NullOut", [](Call& c) { c.a.out.data = nullptr; }, kInvalid, "out.data is NULL"},
    {"NullMask", [](Call& c) { c.a.mask = c.extra(TW_BOOL, 1, 1, 1, 5), c.a.mask.data = nullptr; }, kInvalid,
     "mask.data is NULL"},
    {"MisalignedK", [](Call& c) { c.a.k.data = static_cast<char*>(c.a.k.data) + 2; }, kInvalid,
     "aligned to its elements of 4 bytes"},
    {"MisalignedLengths",
     [](Call& c) {
       c.a.seqused_k = c.extra(TW_I32, 2);
       c.a.seqused_k.data = static_cast<char*>(c.a.seqused_k.data) + 1;
     },
     kInvalid, "seqused_k.data is"},
    {"OutIsQ", [](Call& c) { c.a.out.data = c.a.q.data; }, kInvalid, "out shares memory with q"},
    {"OutInsideV", [](Call& c) { c.a.out.data = static_cast<float*>(c.a.v.data) + 7; }, kInvalid,
     "out shares memory with v"},
    {"OutIsLse", [](Call& c) { c.a.lse.data = c.a.out.data; }, kInvalid, "out shares memory with lse"},
    {"PriorIsOutInAnotherOrder",
     [](Call& c) {
       c.a.prior_lse = c.a.lse;
       c.a.prior_out = c.a.out;
       c.a.prior_out.stride[0] = Call::kDv * Call::kH, c.a.prior_out.stride[1] = Call::kDv * Call::kH * Call::kB;
     },
     kInvalid, "out shares memory with prior_out"},
    {"UsedNegative",
     [](Call& c) {
       c.a.seqused_q = c.extra(TW_I32, std::vector<int32_t>{1, -1});
     },
     kInvalid, "seqused_q[1] is -1"},
    {"UsedTooLong",
     [](Call& c) {
       c.a.seqused_k = c.extra(TW_I32, std::vector<int32_t>{6, 5});
     },
     kInvalid, "seqused_k[0] is 6: must be 0..5"},
    {"UsedAboveMax",
     [](Call& c) {
       c.a.seqused_k = c.extra(TW_I32, std::vector<int32_t>{2, 4});
       c.a.max_seqlen_k = 3;
     },
     kInvalid, "seqused_k gives sequence 1 the length 4: max_seqlen_k allows 3"},
    {"LeftpadNegative",
     [](Call& c) {
       c.a.leftpad_k = c.extra(TW_I32, std::vector<int32_t>{-1, 0});
     },
     kInvalid, "leftpad_k[0] is -1"},
    {"LeftpadTooLong",
     [](Call& c) {
       c.a.leftpad_k = c.extra(TW_I32, std::vector<int32_t>{5, 6});
     },
     kInvalid, "leftpad_k[1] is 6"},
    {"BatchIndexRange",
     [](Call& c) {
       c.a.batch_index_k = c.extra(TW_I32, std::vector<int32_t>{0, 2});
     },
     kInvalid, "batch_index_k[1] is 2: k.shape[0] is 2"},
    {"PositionsDescend",
     [](Call& c) {
       c.a.q_positions = c.extra(TW_I32, 1, 3);
       static const int32_t positions[] = {0, 4, 4, 3, 9};
       c.a.k_positions = tw_tensor_of(positions, TW_I32, 1, 5, 1, 1);
     },
     kInvalid, "k_positions of key 3 of sequence 0 is 3 after 4"},
};

// Three packed sequences of 1, 2 and 0 rows over one row of three, and keys in the same way.
void pack(Call& c, const std::vector<int32_t>& q, const std::vector<int32_t>& k) {
  static std::vector<int32_t> offsets_q, offsets_k;
  offsets_q = q, offsets_k = k;
  for (tw_tensor* t : {&c.a.q, &c.a.k, &c.a.v, &c.a.out, &c.a.lse}) t->shape[0] = 1;
  c.a.cu_seqlens_q = tw_tensor_of(offsets_q.data(), TW_I32, static_cast<int64_t>(q.size()), 1, 1, 1);
  c.a.cu_seqlens_k = tw_tensor_of(offsets_k.data(), TW_I32, static_cast<int64_t>(k.size()), 1, 1, 1);
}

const Rule kPackedRules[] = {
    {"OffsetsStart",
     [](Call& c) {
       pack(c, {1, 2, 3}, {0, 2, 5});
     },
     kInvalid, "cu_seqlens_q[0] is 1: offsets start at 0"},
    {"OffsetsDescend",
     [](Call& c) {
       pack(c, {0, 2, 3}, {0, 4, 3});
     },
     kInvalid, "cu_seqlens_k[2] is 3 after 4"},
    {"OffsetsEnd",
     [](Call& c) {
       pack(c, {0, 2, 4}, {0, 2, 5});
     },
     kInvalid, "cu_seqlens_q[2] is 4 but q.shape[1] is 3"},
    {"OffsetsAboveMax",
     [](Call& c) {
       pack(c, {0, 1, 3}, {0, 1, 5}), c.a.max_seqlen_k = 3;
     },
     kInvalid, "cu_seqlens_k gives sequence 1 the length 4: max_seqlen_k allows 3"},
    {"OffsetsAboveMask",
     [](Call& c) {
       pack(c, {0, 1, 3}, {0, 1, 5}), c.a.mask = c.extra(TW_BOOL, 1, 1, 2, 3);
     },
     kInvalid, "cu_seqlens_k gives sequence 1 the length 4: mask.shape[3] allows 3"},
};

const Rule kBackwardRules[] = {
    {"FlagUnknown", [](Call& c) { c.g.flags = 2; }, kInvalid, "grad.flags has unknown bits 0x2"},
    {"LseAbsent", [](Call& c) { c.a.lse.dtype = TW_NONE; }, kInvalid,
     "lse is absent (its dtype is 0): backward reads it"},
    {"OutAbsent", [](Call& c) { c.a.out.dtype = TW_NONE; }, kInvalid,
     "out is absent (its dtype is 0): backward reads it"},
    {"DoutAbsent", [](Call& c) { c.g.dout.dtype = TW_NONE; }, kInvalid, "dout is absent"},
    {"DoutType", [](Call& c) { c.g.dout.dtype = TW_F16; }, kInvalid, "dout.dtype is fp16 but out.dtype is fp32"},
    {"DqType", [](Call& c) { c.g.dq.dtype = TW_BF16; }, kInvalid, "dq.dtype is bf16 but q.dtype is fp32"},
    {"DkType", [](Call& c) { c.g.dk.dtype = TW_BF16; }, kInvalid, "dk.dtype is bf16 but k.dtype is fp32"},
    {"DvType", [](Call& c) { c.g.dv.dtype = TW_I32; }, kInvalid, "dv.dtype is int32"},
    {"AccumulateType",
     [](Call& c) {
       for (tw_tensor* t : {&c.a.q, &c.a.k, &c.a.v, &c.a.out, &c.g.dout, &c.g.dq}) t->dtype = TW_BF16;
       c.g.flags = TW_GRAD_ACCUMULATE;
     },
     kInvalid, "dq.dtype is bf16: accumulate (C: TW_GRAD_ACCUMULATE) needs fp32"},
    {"DoutShape", [](Call& c) { c.g.dout.shape[1] = 2; }, kInvalid, "dout.shape[1] is 2 but q.shape[1] is 3"},
    {"DlseShape", [](Call& c) { c.g.dlse = c.extra(TW_F32, 2, 4, 2); }, kInvalid, "dlse.shape[2] is 2"},
    {"DqShape", [](Call& c) { c.g.dq.shape[3] = 4; }, kInvalid, "dq.shape[3] is 4 but q.shape[3] is 8"},
    {"DkShape", [](Call& c) { c.g.dk.shape[2] = 1; }, kInvalid, "dk.shape[2] is 1 but k.shape[2] is 2"},
    {"DqHeadsOverlap", [](Call& c) { c.g.dq.shape[2] = 6; }, kInvalid, "dq.shape[2] is 6 but q.shape[2] is 4"},
    {"DkHeadsOverlap", [](Call& c) { c.g.dk.shape[2] = 4; }, kInvalid, "dk.shape[2] is 4 but k.shape[2] is 2"},
    {"DvHeadsOverlap", [](Call& c) { c.g.dv.shape[2] = 4; }, kInvalid, "dv.shape[2] is 4 but k.shape[2] is 2"},
    {"DvShape", [](Call& c) { c.g.dv.shape[3] = 5; }, kInvalid, "dv.shape[3] is 5 but v.shape[3] is 6"},
    {"DqOverlapsItself", [](Call& c) { c.g.dq.stride[0] = 8; }, kInvalid, "dq.stride"},
    {"DkRepeats", [](Call& c) { c.g.dk.stride[1] = 0; }, kInvalid, "dk.stride[1] is 0"},
    {"DvLastStride", [](Call& c) { c.g.dv.stride[3] = 2; }, kInvalid, "dv.stride[3] is 2"},
    {"DbiasAlone", [](Call& c) { c.g.dbias = c.extra(TW_F32, 1, 1, 3, 5); }, kInvalid,
     "dbias is given but bias is absent"},
    {"DbiasShape", [](Call& c) { c.a.bias = c.extra(TW_F32, 1, 4, 3, 5), c.g.dbias = c.extra(TW_F32, 1, 1, 3, 5); },
     kInvalid, "dbias.shape[1] is 1 but bias.shape[1] is 4"},
    {"DbiasType", [](Call& c) { c.a.bias = c.extra(TW_F16, 1, 1, 3, 5), c.g.dbias = c.extra(TW_BF16, 1, 1, 3, 5); },
     kInvalid, "dbias.dtype is bf16 but bias.dtype is fp16"},
    {"DsinkAlone", [](Call& c) { c.g.dsink = c.extra(TW_F32, 4); }, kInvalid, "dsink is given but sink is absent"},
    {"DsinkShape", [](Call& c) { c.a.sink = c.extra(TW_F32, 4), c.g.dsink = c.extra(TW_F32, 2); }, kInvalid,
     "dsink.shape[0] is 2"},
    {"Prior", [](Call& c) { c.a.prior_out = c.a.out, c.a.prior_lse = c.a.lse; }, kInvalid,
     "prior_out is given in a backward"},
    {"BatchIndex", [](Call& c) { c.a.batch_index_k = c.extra(TW_I32, 2); }, TW_UNSUPPORTED, "batch_index_k"},
    {"GradReserved", [](Call& c) { c.g.dq.reserved = 3; }, kInvalid, "dq.reserved is 3"},
};

const Rule kBackwardRunRules[] = {
    {"NullDout", [](Call& c) { c.g.dout.data = nullptr; }, kInvalid, "dout.data is NULL"},
    {"NullDq", [](Call& c) { c.g.dq.data = nullptr; }, kInvalid, "dq.data is NULL"},
    {"DqIsQ", [](Call& c) { c.g.dq.data = c.a.q.data; }, kInvalid, "dq shares memory with q"},
    {"DkIsDq", [](Call& c) { c.g.dk.data = c.g.dq.data; }, kInvalid, "shares memory with d"},
};

class BrokenRunRule : public BrokenRule {};
TEST_P(BrokenRunRule, IsRefusedAtRunning) {
  Call c;
  GetParam().break_it(c);
  tw_plan plan;
  EXPECT_EQ(tw_attention_plan(&c.a, nullptr, &plan), TW_OK) << tw_last_error();
  expect_broken(c.forward());
  EXPECT_TRUE(c.forward_is_untouched());
}
INSTANTIATE_TEST_SUITE_P(Api, BrokenRunRule, testing::ValuesIn(kRunRules), name_of_rule);
INSTANTIATE_TEST_SUITE_P(ApiPacked, BrokenRunRule, testing::ValuesIn(kPackedRules), name_of_rule);

class BrokenBackwardRule : public BrokenRule {};
TEST_P(BrokenBackwardRule, IsRefusedAtPlanningAndRunning) {
  Call c;
  GetParam().break_it(c);
  tw_plan plan;
  expect_broken(tw_attention_plan(&c.a, &c.g, &plan));
  expect_broken(c.backward());
  EXPECT_TRUE(c.backward_is_untouched());
}
INSTANTIATE_TEST_SUITE_P(Api, BrokenBackwardRule, testing::ValuesIn(kBackwardRules), name_of_rule);

class BrokenBackwardRunRule : public BrokenRule {};
TEST_P(BrokenBackwardRunRule, IsRefusedAtRunning) {
  Call c;
  GetParam().break_it(c);
  tw_plan plan;
  EXPECT_EQ(tw_attention_plan(&c.a, &c.g, &plan), TW_OK) << tw_last_error();
  expect_broken(c.backward());
  EXPECT_TRUE(c.backward_is_untouched());
}
INSTANTIATE_TEST_SUITE_P(Api, BrokenBackwardRunRule, testing::ValuesIn(kBackwardRunRules), name_of_rule);
}  // namespace
}  // namespace tilewise::test
