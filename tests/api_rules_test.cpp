// Every rule that arguments must keep (docs/contract.md C6): the code, a message that names the argument, its value and
// the rule, at planning where shapes tell and at running in any case, and outputs as they were.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "api_call.h"

namespace tilewise::test {
namespace {

struct Rule {
  const char* name;
  void (*break_it)(Call& c);
  tw_status code;
  const char* message;  // a part of it
};

std::ostream& operator<<(std::ostream& stream, const Rule& rule) { return stream << rule.name; }

class BrokenRule : public testing::TestWithParam<Rule> {};

constexpr int64_t kHuge = int64_t{1} << 62;
constexpr tw_status kInvalid = TW_INVALID_ARGUMENT;

const Rule kShapeRules[] = {
    {"DeviceZero", [](Call& c) { c.a.device_type = 0; }, kInvalid, "device_type is 0"},
    {"DeviceUnknown", [](Call& c) { c.a.device_type = 3; }, kInvalid, "device_type is 3"},
    {"DeviceCuda", [](Call& c) { c.a.device_type = TW_CUDA; }, TW_UNSUPPORTED, "device_type is TW_CUDA"},
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
     "mask.dtype is fp32: must be bool"},
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
     kInvalid, "heads 3 of q and 2 of k: 3 % 2 is not 0"},
    {"KeyHeadsDiffer", [](Call& c) { c.a.v.shape[2] = 1; }, kInvalid, "v.shape[2] is 1 but k.shape[2] is 2"},
    {"HeadDimsDiffer", [](Call& c) { c.a.k.shape[3] = 4; }, kInvalid, "k.shape[3] is 4 but q.shape[3] is 8"},
    {"BatchesDiffer", [](Call& c) { c.a.k.shape[0] = 1; }, kInvalid, "k.shape[0] is 1 but q.shape[0] is 2"},
    {"KeysDiffer", [](Call& c) { c.a.v.shape[1] = 4; }, kInvalid, "v.shape[1] is 4 but k.shape[1] is 5"},
    {"OutRows", [](Call& c) { c.a.out.shape[1] = 2; }, kInvalid, "out.shape[1] is 2 but q.shape[1] is 3"},
    {"OutHeads", [](Call& c) { c.a.out.shape[2] = 2; }, kInvalid, "out.shape[2] is 2 but q.shape[2] is 4"},
    {"OutDim", [](Call& c) { c.a.out.shape[3] = 5; }, kInvalid, "out.shape[3] is 5 but v.shape[3] is 6"},
    {"LseShape", [](Call& c) { c.a.lse.shape[1] = 3; }, kInvalid, "lse.shape[1] is 3 but q.shape[2] is 4"},

    {"PackedBatch", [](Call& c) { c.a.cu_seqlens_q = c.extra(TW_I32, 3); }, kInvalid, "q.shape[0] is 2: must be 1"},
    {"PackedNoOffsets", [](Call& c) { c.a.q.shape[0] = c.a.out.shape[0] = 1, c.a.cu_seqlens_q = c.extra(TW_I32, 0); },
     kInvalid, "cu_seqlens_q.shape[0] is 0"},
    {"PackedKeysBatch", [](Call& c) { c.a.k.shape[0] = c.a.v.shape[0] = 1, c.a.cu_seqlens_k = c.extra(TW_I32, 5); },
     kInvalid, "cu_seqlens_k.shape[0] is 5 but q.shape[0] is 2"},
    {"PackedKeysSlots", [](Call& c) { c.a.cu_seqlens_k = c.extra(TW_I32, 3); }, kInvalid, "k.shape[0] is 2: must be 1"},
    {"SequsedShape", [](Call& c) { c.a.seqused_q = c.extra(TW_I32, 3); }, kInvalid, "seqused_q.shape[0] is 3"},
    {"SequsedKShape", [](Call& c) { c.a.seqused_k = c.extra(TW_I32, 1); }, kInvalid, "seqused_k.shape[0] is 1"},
    {"LeftpadShape", [](Call& c) { c.a.leftpad_k = c.extra(TW_I32, 3); }, kInvalid, "leftpad_k.shape[0] is 3"},
    {"BatchIndexShape", [](Call& c) { c.a.batch_index_k = c.extra(TW_I32, 3); }, kInvalid,
     "batch_index_k.shape[0] is 3"},
    {"BatchIndexPacked", [](Call& c) { c.a.batch_index_k = c.extra(TW_I32, 2), c.a.cu_seqlens_k = c.extra(TW_I32, 3); },
     kInvalid, "batch_index_k is given with cu_seqlens_k"},
    {"MaxSeqlenNegative", [](Call& c) { c.a.max_seqlen_q = -1; }, kInvalid, "max_seqlen_q is -1"},
    {"MaxSeqlenKNegative", [](Call& c) { c.a.max_seqlen_k = -1; }, kInvalid, "max_seqlen_k is -1"},
    {"MaxSeqlenShort", [](Call& c) { c.a.max_seqlen_k = 4; }, kInvalid, "max_seqlen_k is 4 but k.shape[1] is 5"},
    {"BlockTable", [](Call& c) { c.a.block_table = c.extra(TW_I32, 2, 1); }, TW_UNSUPPORTED, "block_table"},
    {"QScale", [](Call& c) { c.a.q_scale = c.extra(TW_F32, 1); }, TW_UNSUPPORTED, "q_scale"},
    {"KScale", [](Call& c) { c.a.k_scale = c.extra(TW_F32, 1); }, TW_UNSUPPORTED, "k_scale"},
    {"VScale", [](Call& c) { c.a.v_scale = c.extra(TW_F32, 1); }, TW_UNSUPPORTED, "v_scale"},
    {"VInK", [](Call& c) { c.a.flags = TW_V_IN_K; }, TW_UNSUPPORTED, "TW_V_IN_K"},
    {"ScalePerSequence", [](Call& c) { c.a.flags = TW_SCALE_PER_SEQUENCE; }, TW_UNSUPPORTED, "TW_SCALE_PER_SEQUENCE"},

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
     "window_left is -1"},
    {"WindowRightNegative", [](Call& c) { c.a.flags = TW_WINDOW_RIGHT, c.a.window_right = -1; }, kInvalid,
     "window_right is -1"},
    {"ChunkNegative", [](Call& c) { c.a.attention_chunk = -4; }, kInvalid, "attention_chunk is -4"},
    {"TailWithoutMask", [](Call& c) { c.a.flags = TW_MASK_TAIL; }, kInvalid, "TW_MASK_TAIL is set but mask is absent"},
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
     kInvalid, "dq.dtype is bf16: TW_GRAD_ACCUMULATE needs fp32"},
    {"DoutShape", [](Call& c) { c.g.dout.shape[1] = 2; }, kInvalid, "dout.shape[1] is 2 but q.shape[1] is 3"},
    {"DlseShape", [](Call& c) { c.g.dlse = c.extra(TW_F32, 2, 4, 2); }, kInvalid, "dlse.shape[2] is 2"},
    {"DqShape", [](Call& c) { c.g.dq.shape[3] = 4; }, kInvalid, "dq.shape[3] is 4 but q.shape[3] is 8"},
    {"DkShape", [](Call& c) { c.g.dk.shape[2] = 1; }, kInvalid, "dk.shape[2] is 1 but k.shape[2] is 2"},
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

std::string name_of_rule(const testing::TestParamInfo<Rule>& rule) { return rule.param.name; }

void expect_broken(const Rule& rule, tw_status status) {
  EXPECT_EQ(status, rule.code) << tw_last_error();
  EXPECT_TRUE(last_error_has(rule.message)) << tw_last_error() << "\nwanted: " << rule.message;
}

using BrokenShapeRule = BrokenRule;
TEST_P(BrokenShapeRule, IsRefusedAtPlanningAndRunning) {
  Call c;
  GetParam().break_it(c);
  tw_plan plan;
  std::memset(&plan, 0x55, sizeof plan);
  const tw_plan before = plan;
  expect_broken(GetParam(), tw_attention_plan(&c.a, nullptr, &plan));
  EXPECT_EQ(std::memcmp(&plan, &before, sizeof plan), 0);
  expect_broken(GetParam(), c.forward());
  EXPECT_TRUE(c.forward_is_untouched());
}
INSTANTIATE_TEST_SUITE_P(Api, BrokenShapeRule, testing::ValuesIn(kShapeRules), name_of_rule);

class BrokenRunRule : public BrokenRule {};
TEST_P(BrokenRunRule, IsRefusedAtRunning) {
  Call c;
  GetParam().break_it(c);
  tw_plan plan;
  EXPECT_EQ(tw_attention_plan(&c.a, nullptr, &plan), TW_OK) << tw_last_error();
  expect_broken(GetParam(), c.forward());
  EXPECT_TRUE(c.forward_is_untouched());
}
INSTANTIATE_TEST_SUITE_P(Api, BrokenRunRule, testing::ValuesIn(kRunRules), name_of_rule);
INSTANTIATE_TEST_SUITE_P(ApiPacked, BrokenRunRule, testing::ValuesIn(kPackedRules), name_of_rule);

class BrokenBackwardRule : public BrokenRule {};
TEST_P(BrokenBackwardRule, IsRefusedAtPlanningAndRunning) {
  Call c;
  GetParam().break_it(c);
  tw_plan plan;
  expect_broken(GetParam(), tw_attention_plan(&c.a, &c.g, &plan));
  expect_broken(GetParam(), c.backward());
  EXPECT_TRUE(c.backward_is_untouched());
}
INSTANTIATE_TEST_SUITE_P(Api, BrokenBackwardRule, testing::ValuesIn(kBackwardRules), name_of_rule);

class BrokenBackwardRunRule : public BrokenRule {};
TEST_P(BrokenBackwardRunRule, IsRefusedAtRunning) {
  Call c;
  GetParam().break_it(c);
  tw_plan plan;
  EXPECT_EQ(tw_attention_plan(&c.a, &c.g, &plan), TW_OK) << tw_last_error();
  expect_broken(GetParam(), c.backward());
  EXPECT_TRUE(c.backward_is_untouched());
}
INSTANTIATE_TEST_SUITE_P(Api, BrokenBackwardRunRule, testing::ValuesIn(kBackwardRunRules), name_of_rule);

// ---- Legal calls that a careless check would refuse.

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
