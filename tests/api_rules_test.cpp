// Every rule that shapes and values must keep (docs/contract.md C6): the code, a message that names the argument, its
// value and the rule, at planning and at running, and outputs as they were.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "api_rule.h"

namespace tilewise::test {
namespace {

// One slot, two sequences.
void pack_rows(Call& c) {
  for (tw_tensor* t : {&c.a.q, &c.a.out, &c.a.lse}) t->shape[0] = 1;
  c.a.cu_seqlens_q = c.extra(TW_I32, 3);
}

const Rule kShapeRules[] = {
    {"DeviceZero", [](Call& c) { c.a.device_type = 0; }, kInvalid, "device_type is 0"},
    {"DeviceUnknown", [](Call& c) { c.a.device_type = 3; }, kInvalid, "device_type is 3"},
    {"GpuIndexNegative", [](Call& c) { c.a.device_type = TW_CUDA, c.a.device_index = -1; }, kInvalid,
     "device_index is -1"},
    {"DeviceIndex", [](Call& c) { c.a.device_index = 1; }, kInvalid, "device_index is 1"},
    {"ThreadsNegative", [](Call& c) { c.a.threads = -1; }, kInvalid, "threads is -1"},
    {"SmMarginNegative", [](Call& c) { c.a.sm_margin = -2; }, kInvalid, "sm_margin is -2"},
    {"NumSplitsNegative", [](Call& c) { c.a.num_splits = -3; }, kInvalid, "num_splits is -3"},
    {"FlagUnknown", [](Call& c) { c.a.flags = 1u << 10; }, kInvalid, "flags has unknown bits 0x400"},
    {"Reserved", [](Call& c) { c.a.reserved = 1; }, kInvalid, "reserved is 1"},
    {"Reserved1", [](Call& c) { c.a.reserved1 = 5; }, kInvalid, "reserved1 is 5"},
    {"TensorReserved", [](Call& c) { c.a.k.reserved = 7; }, kInvalid, "k.reserved is 7"},
    {"AbsentTensorReserved", [](Call& c) { c.a.bias.reserved = 7; }, kInvalid, "bias.reserved is 7"},

    {"QAbsent", [](Call& c) { c.a.q.dtype = TW_NONE; }, kInvalid, "q is absent"},
    {"KAbsent", [](Call& c) { c.a.k.dtype = TW_NONE; }, kInvalid, "k is absent"},
    {"VAbsent", [](Call& c) { c.a.v.dtype = TW_NONE; }, kInvalid, "v is absent"},
    {"OutAbsent", [](Call& c) { c.a.out.dtype = TW_NONE; }, kInvalid, "out is absent"},
    {"TypeUnknown", [](Call& c) { c.a.q.dtype = 10; }, kInvalid, "q.dtype is 10"},
    {"TypeNegative", [](Call& c) { c.a.q.dtype = -1; }, kInvalid, "q.dtype is -1"},
    {"TypeOfTheOracle", [](Call& c) { c.a.q.dtype = 100; }, kInvalid, "q.dtype is 100"},
    {"TypeOfQ", [](Call& c) { c.a.q.dtype = TW_I32; }, kInvalid, "q.dtype is int32: must be fp32, fp16 or bf16"},
    {"TypeFp8", [](Call& c) { c.a.q.dtype = c.a.k.dtype = c.a.v.dtype = TW_F8E4M3; }, TW_UNSUPPORTED, "q.dtype is fp8"},
    {"TypeInt8", [](Call& c) { c.a.k.dtype = TW_I8; }, TW_UNSUPPORTED, "k.dtype is int8"},
    {"TypeInt4", [](Call& c) { c.a.v.dtype = TW_I4; }, TW_UNSUPPORTED, "v.dtype is int4"},
    {"TypeOfKDiffers", [](Call& c) { c.a.k.dtype = TW_F16; }, kInvalid, "k.dtype is fp16 but q.dtype is fp32"},
    {"TypeOfVDiffers", [](Call& c) { c.a.v.dtype = TW_BF16; }, kInvalid, "v.dtype is bf16 but q.dtype is fp32"},
    {"TypeOfOutDiffers", [](Call& c) { c.a.out.dtype = TW_BF16; }, kInvalid, "out.dtype is bf16 but q.dtype is fp32"},
    {"TypeOfLse", [](Call& c) { c.a.lse.dtype = TW_F16; }, kInvalid, "lse.dtype is fp16: must be fp32"},
    {"TypeOfMask", [](Call& c) { c.a.mask = c.extra(TW_F32, 1, 1, 3, 5); }, kInvalid,
     "mask.dtype is fp32: must be bool; what is added to the scores is bias"},
    {"TypeOfBias", [](Call& c) { c.a.bias = c.extra(TW_BOOL, 1, 1, 3, 5); }, kInvalid, "bias.dtype is bool"},
    {"TypeOfLengths", [](Call& c) { c.a.seqused_k = c.extra(TW_I64, 2); }, kInvalid, "seqused_k.dtype is int64"},
    {"TypeOfState", [](Call& c) { c.a.dropout_state = c.extra(TW_I32, 2); }, kInvalid, "dropout_state.dtype is int32"},
    {"TypeOfPrior",
     [](Call& c) {
       c.a.prior_out = c.extra(TW_F16, 2, 3, 4, 6);
       c.a.prior_lse = c.extra(TW_F32, 2, 4, 3);
     },
     kInvalid, "prior_out.dtype is fp16"},

    {"ExtentNegative", [](Call& c) { c.a.k.shape[1] = -5; }, kInvalid, "k.shape[1] is -5"},
    {"ElementsOverflow", [](Call& c) { c.a.q.shape[0] = c.a.q.shape[1] = kHuge; }, kInvalid, "q.shape[0] is 46116"},
    {"ElementsOfEmpty", [](Call& c) { c.a.q.shape[0] = 0, c.a.q.shape[1] = kHuge; }, kInvalid, "q.shape[1] is 46116"},
    {"StrideOverflow", [](Call& c) { c.a.k.stride[0] = kHuge; }, kInvalid, "k.stride[0] is 46116"},
    {"StrideOverflowNegative", [](Call& c) { c.a.k.stride[0] = std::numeric_limits<int64_t>::min(); }, kInvalid,
     "k.stride[0] is -92233"},
    {"StridesOverflowTogether", [](Call& c) { c.a.k.stride[0] = c.a.k.stride[2] = kHuge / 4; }, kInvalid,
     "k.stride[2]"},
    {"LastStrideOfQ", [](Call& c) { c.a.q.stride[3] = 2; }, kInvalid, "q.stride[3] is 2"},
    {"LastStrideOfV", [](Call& c) { c.a.v.stride[3] = 0; }, kInvalid, "v.stride[3] is 0"},
    {"LastStrideOfOut", [](Call& c) { c.a.out.stride[3] = 4; }, kInvalid, "out.stride[3] is 4"},
    {"OutRepeats", [](Call& c) { c.a.out.stride[0] = 0; }, kInvalid, "out.stride[0] is 0"},
    {"OutOverlapsItself", [](Call& c) { c.a.out.stride[2] = 5; }, kInvalid, "out.stride[2] is 5"},
    {"LseAxesSwapped", [](Call& c) { std::swap(c.a.lse.shape[1], c.a.lse.shape[2]); }, kInvalid,
     "lse.shape[1] is 3 but q.shape[2] is 4"},
    {"LseOverlapsItself", [](Call& c) { c.a.lse.stride[1] = 2; }, kInvalid, "lse.stride[1] is 2"},

    {"HeadDimZero", [](Call& c) { c.a.q.shape[3] = c.a.k.shape[3] = 0; }, kInvalid, "q.shape[3] is 0"},
    {"HeadDimLarge",
     [](Call& c) { c.a.q = c.a.k = c.extra(TW_F32, 1, 1, 1, 513), c.a.v = c.extra(TW_F32, 1, 1, 1, 1); },
     TW_UNSUPPORTED, "q.shape[3] is 513: head_dim must be 1..512"},
    {"ValueDimZero", [](Call& c) { c.a.v.shape[3] = c.a.out.shape[3] = 0; }, kInvalid, "v.shape[3] is 0"},
    {"ValueDimLarge", [](Call& c) { c.a.v.shape[3] = 600; }, TW_UNSUPPORTED, "v.shape[3] is 600"},
    {"NoHeads", [](Call& c) { c.a.q.shape[2] = 0; }, kInvalid, "q.shape[2] is 0"},
    {"NoKeyHeads", [](Call& c) { c.a.k.shape[2] = 0; }, kInvalid, "k.shape[2] is 0"},
    {"HeadsDoNotDivide",
     [](Call& c) { c.a.q.shape[2] = c.a.out.shape[2] = c.a.lse.shape[1] = 3, c.a.k.shape[2] = c.a.v.shape[2] = 2; },
     kInvalid, "k.shape[2] is 2 but q.shape[2] is 3: heads of q must be a multiple of those of k"},
    {"KeysNotSwapped", [](Call& c) { c.a.k = tw_tensor_swap(c.a.k, 1, 2), c.a.v = tw_tensor_swap(c.a.v, 1, 2); },
     kInvalid,
     "k.shape[2] is 5 but q.shape[2] is 4: heads of q must be a multiple of those of k; axes are (B,S,H,D), "
     "and (B,H,S,D) memory needs layout=\"bhsd\" (command: --layout bhsd; C: tw_tensor_swap)"},
    {"KeyHeadsDiffer", [](Call& c) { c.a.v.shape[2] = 1; }, kInvalid, "v.shape[2] is 1 but k.shape[2] is 2"},
    {"HeadDimsDiffer", [](Call& c) { c.a.k.shape[3] = 4; }, kInvalid, "k.shape[3] is 4 but q.shape[3] is 8"},
    {"BatchesDiffer", [](Call& c) { c.a.k.shape[0] = 1; }, kInvalid, "k.shape[0] is 1 but q.shape[0] is 2"},
    {"KeysDiffer", [](Call& c) { c.a.v.shape[1] = 4; }, kInvalid, "v.shape[1] is 4 but k.shape[1] is 5"},
    {"OutRows", [](Call& c) { c.a.out.shape[1] = 2; }, kInvalid, "out.shape[1] is 2 but q.shape[1] is 3"},
    {"OutHeads", [](Call& c) { c.a.out.shape[2] = 2; }, kInvalid, "out.shape[2] is 2 but q.shape[2] is 4"},
    {"OutHeadsOverlap", [](Call& c) { c.a.out.shape[2] = 8; }, kInvalid, "out.shape[2] is 8 but q.shape[2] is 4"},
    {"OutDim", [](Call& c) { c.a.out.shape[3] = 5; }, kInvalid, "out.shape[3] is 5 but v.shape[3] is 6"},
    {"LseShape", [](Call& c) { c.a.lse.shape[1] = 3; }, kInvalid, "lse.shape[1] is 3 but q.shape[2] is 4"},

    {"PackedBatch", [](Call& c) { c.a.cu_seqlens_q = c.extra(TW_I32, 3); }, kInvalid, "q.shape[0] is 2: must be 1"},
    {"PackedNoOffsets", [](Call& c) { c.a.q.shape[0] = c.a.out.shape[0] = 1, c.a.cu_seqlens_q = c.extra(TW_I32, 0); },
     kInvalid, "cu_seqlens_q.shape[0] is 0"},
    {"PackedKeysBatch", [](Call& c) { c.a.k.shape[0] = c.a.v.shape[0] = 1, c.a.cu_seqlens_k = c.extra(TW_I32, 5); },
     kInvalid, "cu_seqlens_k.shape[0] is 5 but q.shape[0] is 2: must be one more, or give cu_seqlens_q if q is packed"},
    {"PackedBatchesDiffer",
     [](Call& c) { pack_rows(c), c.a.k.shape[0] = c.a.v.shape[0] = 1, c.a.cu_seqlens_k = c.extra(TW_I32, 4); },
     kInvalid, "cu_seqlens_k.shape[0] is 4 but cu_seqlens_q.shape[0] is 3: they must be equal"},
    {"PackedKeysWithoutOffsets", [](Call& c) { pack_rows(c), c.a.k.shape[0] = c.a.v.shape[0] = 1; }, kInvalid,
     "k.shape[0] is 1 but cu_seqlens_q.shape[0] - 1 is 2: they must be equal, or give cu_seqlens_k if k is packed"},
    {"PackedKeysSlots", [](Call& c) { c.a.cu_seqlens_k = c.extra(TW_I32, 3); }, kInvalid, "k.shape[0] is 2: must be 1"},
    {"SequsedShape", [](Call& c) { c.a.seqused_q = c.extra(TW_I32, 3); }, kInvalid, "seqused_q.shape[0] is 3"},
    {"SequsedKShape", [](Call& c) { c.a.seqused_k = c.extra(TW_I32, 1); }, kInvalid, "seqused_k.shape[0] is 1"},
    {"LeftpadShape", [](Call& c) { c.a.leftpad_k = c.extra(TW_I32, 3); }, kInvalid, "leftpad_k.shape[0] is 3"},
    {"BatchIndexShape", [](Call& c) { c.a.batch_index_k = c.extra(TW_I32, 3); }, kInvalid,
     "batch_index_k.shape[0] is 3"},
    {"BatchIndexPacked", [](Call& c) { c.a.batch_index_k = c.extra(TW_I32, 2), c.a.cu_seqlens_k = c.extra(TW_I32, 3); },
     kInvalid, "batch_index_k is given with cu_seqlens_k"},
    {"BatchIndexOfNothing",
     [](Call& c) { c.a.batch_index_k = c.extra(TW_I32, 2), c.a.k.shape[0] = c.a.v.shape[0] = 0; }, kInvalid,
     "k.shape[0] is 0: batch_index_k chooses among its rows"},
    {"MaxSeqlenNegative", [](Call& c) { c.a.max_seqlen_q = -1; }, kInvalid, "max_seqlen_q is -1"},
    {"MaxSeqlenKNegative", [](Call& c) { c.a.max_seqlen_k = -1; }, kInvalid, "max_seqlen_k is -1"},
    {"MaxSeqlenShort", [](Call& c) { c.a.max_seqlen_k = 4; }, kInvalid, "max_seqlen_k is 4 but k.shape[1] is 5"},
    {"BlockTable", [](Call& c) { c.a.block_table = c.extra(TW_I32, 2, 1); }, TW_UNSUPPORTED, "block_table"},
    {"QScale", [](Call& c) { c.a.q_scale = c.extra(TW_F32, 1); }, TW_UNSUPPORTED, "q_scale"},
    {"KScale", [](Call& c) { c.a.k_scale = c.extra(TW_F32, 1); }, TW_UNSUPPORTED, "k_scale"},
    {"VScale", [](Call& c) { c.a.v_scale = c.extra(TW_F32, 1); }, TW_UNSUPPORTED, "v_scale"},
    {"VInK", [](Call& c) { c.a.flags = TW_V_IN_K; }, TW_UNSUPPORTED, "v_in_k (C: TW_V_IN_K) is set"},
    {"ScalePerSequence", [](Call& c) { c.a.flags = TW_SCALE_PER_SEQUENCE; }, TW_UNSUPPORTED,
     "scale_per_sequence (C: TW_SCALE_PER_SEQUENCE) is set"},

    {"ScaleWithoutFlag", [](Call& c) { c.a.softmax_scale = 0.5f; }, kInvalid,
     "softmax_scale is 0.5 but TW_SOFTMAX_SCALE"},
    {"ScaleNan", [](Call& c) { c.a.flags = TW_SOFTMAX_SCALE, c.a.softmax_scale = NAN; }, kInvalid,
     "softmax_scale is nan"},
    {"ScaleInfinite", [](Call& c) { c.a.flags = TW_SOFTMAX_SCALE, c.a.softmax_scale = INFINITY; }, kInvalid,
     "softmax_scale is inf"},
    {"SoftcapNegative", [](Call& c) { c.a.softcap = -1; }, kInvalid, "softcap is -1"},
    {"SoftcapNan", [](Call& c) { c.a.softcap = NAN; }, kInvalid, "softcap is nan"},
    {"SoftcapInfinite", [](Call& c) { c.a.softcap = INFINITY; }, kInvalid, "softcap is inf"},
    {"DropoutNegative", [](Call& c) { c.a.dropout_p = -0.5f; }, kInvalid, "dropout_p is -0.5"},
    {"DropoutOne", [](Call& c) { c.a.dropout_p = 1; }, kInvalid, "dropout_p is 1"},
    {"DropoutNan", [](Call& c) { c.a.dropout_p = NAN; }, kInvalid, "dropout_p is nan"},
    {"DropoutStateShape", [](Call& c) { c.a.dropout_state = c.extra(TW_I64, 3); }, kInvalid,
     "dropout_state.shape[0] is 3"},
    {"DropoutTwoSeeds", [](Call& c) { c.a.dropout_state = c.extra(TW_I64, 2), c.a.dropout_seed = 7; }, kInvalid,
     "dropout_seed is 7"},
    {"WindowLeftWithoutFlag", [](Call& c) { c.a.window_left = 3; }, kInvalid, "window_left is 3 but TW_WINDOW_LEFT"},
    {"WindowRightWithoutFlag", [](Call& c) { c.a.window_right = 3; }, kInvalid,
     "window_right is 3 but TW_WINDOW_RIGHT"},
    {"WindowLeftNegative", [](Call& c) { c.a.flags = TW_WINDOW_LEFT, c.a.window_left = -1; }, kInvalid,
     "window_left is -1: must not be negative; leave it out for no limit (C: without TW_WINDOW_LEFT; Python: None)"},
    {"WindowRightNegative", [](Call& c) { c.a.flags = TW_WINDOW_RIGHT, c.a.window_right = -1; }, kInvalid,
     "window_right is -1: must not be negative; leave it out for no limit (C: without TW_WINDOW_RIGHT; Python: None)"},
    {"ChunkNegative", [](Call& c) { c.a.attention_chunk = -4; }, kInvalid, "attention_chunk is -4"},
    {"TailWithoutMask", [](Call& c) { c.a.flags = TW_MASK_TAIL; }, kInvalid,
     "mask_tail (C: TW_MASK_TAIL) is set but mask is absent"},
    {"MaskKeys", [](Call& c) { c.a.mask = c.extra(TW_BOOL, 1, 1, 3, 4); }, kInvalid,
     "mask.shape[3] is 4 but k.shape[1] is 5"},
    {"MaskHeads", [](Call& c) { c.a.mask = c.extra(TW_BOOL, 1, 2, 3, 5); }, kInvalid,
     "mask.shape[1] is 2 but q.shape[2] is 4"},
    {"BiasRows", [](Call& c) { c.a.bias = c.extra(TW_F32, 1, 1, 2, 5); }, kInvalid,
     "bias.shape[2] is 2 but q.shape[1] is 3"},
    {"BiasBatch", [](Call& c) { c.a.bias = c.extra(TW_F32, 3, 1, 1, 5); }, kInvalid,
     "bias.shape[0] is 3 but q.shape[0] is 2"},
    {"AlibiHeads", [](Call& c) { c.a.alibi_slopes = c.extra(TW_F32, 1, 1); }, kInvalid, "alibi_slopes.shape[1] is 1"},
    {"KeyBeginRows", [](Call& c) { c.a.key_begin = c.extra(TW_I32, 2, 1, 1); }, kInvalid, "key_begin.shape[2] is 1"},
    {"KeyEndHeads", [](Call& c) { c.a.key_end = c.extra(TW_I32, 2, 3, 3); }, kInvalid, "key_end.shape[1] is 3"},
    {"PositionsRows", [](Call& c) { c.a.q_positions = c.extra(TW_I32, 1, 4); }, kInvalid, "q_positions.shape[1] is 4"},
    {"PositionsKeys", [](Call& c) { c.a.q_positions = c.extra(TW_I32, 1, 3), c.a.k_positions = c.extra(TW_I32, 1, 3); },
     kInvalid, "k_positions.shape[1] is 3"},
    {"PositionsOfKeysAlone", [](Call& c) { c.a.k_positions = c.extra(TW_I32, 1, 5); }, kInvalid,
     "k_positions is given but q_positions"},
    {"SinkHeads", [](Call& c) { c.a.sink = c.extra(TW_F32, 2); }, kInvalid, "sink.shape[0] is 2"},
    {"PriorOutAlone", [](Call& c) { c.a.prior_out = c.a.out; }, kInvalid, "prior_out is given but prior_lse is absent"},
    {"PriorLseAlone", [](Call& c) { c.a.prior_lse = c.a.lse; }, kInvalid, "prior_lse is given but prior_out is absent"},
    {"PriorShape", [](Call& c) { c.a.prior_out = c.a.out, c.a.prior_lse = c.extra(TW_F32, 2, 3, 4); }, kInvalid,
     "prior_lse.shape[1] is 3"},
};

class BrokenShapeRule : public BrokenRule {};
TEST_P(BrokenShapeRule, IsRefusedAtPlanningAndRunning) {
  Call c;
  GetParam().break_it(c);
  tw_plan plan;
  std::memset(&plan, 0x55, sizeof plan);
  const tw_plan before = plan;
  expect_broken(tw_attention_plan(&c.a, nullptr, &plan));
  EXPECT_EQ(std::memcmp(&plan, &before, sizeof plan), 0);
  expect_broken(c.forward());
  EXPECT_TRUE(c.forward_is_untouched());
}
INSTANTIATE_TEST_SUITE_P(Api, BrokenShapeRule, testing::ValuesIn(kShapeRules), name_of_rule);

TEST(ApiNull, IsRefusedByName) {
  Call c;
  tw_plan plan;
  tw_exec exec;
  TW_INIT(exec);
  EXPECT_EQ(tw_attention_plan(nullptr, nullptr, &plan), kInvalid);
  EXPECT_TRUE(last_error_has("problem is NULL"));
  EXPECT_EQ(tw_attention_plan(&c.a, nullptr, nullptr), kInvalid);
  EXPECT_TRUE(last_error_has("plan is NULL"));
  EXPECT_EQ(tw_attention_run(nullptr, &c.a, nullptr, &exec), kInvalid);
  EXPECT_TRUE(last_error_has("plan is NULL"));
  EXPECT_EQ(tw_attention_forward(nullptr, nullptr), kInvalid);
  EXPECT_TRUE(last_error_has("problem is NULL"));
  EXPECT_EQ(tw_attention_backward(&c.a, nullptr, nullptr), kInvalid);
  EXPECT_TRUE(last_error_has("grad is NULL"));
  EXPECT_TRUE(c.forward_is_untouched());
}
}  // namespace
}  // namespace tilewise::test
