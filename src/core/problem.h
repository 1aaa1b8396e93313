// Problem: one call, normalised and validated. Every door (C, C++, Python, CLI) makes one; every kernel reads one.
//
// Plain data: a translation unit built for one instruction set may include this file, so it holds no inline function
// that the linker could share between instruction sets (those here are always inlined).
#pragma once

#include <cstdint>

#include "core/inline.h"
#include "core/status.h"

namespace tilewise {

enum class Pass : int32_t { forward, backward };

// The numbers of the C interface. f64 is internal: only `reference` reads and writes it, as the oracle of the tests.
enum class Type : int32_t {
  none = TW_NONE,
  f32 = TW_F32,
  f16 = TW_F16,
  bf16 = TW_BF16,
  f8 = TW_F8E4M3,
  i8 = TW_I8,
  i4 = TW_I4,
  boolean = TW_BOOL,
  i32 = TW_I32,
  i64 = TW_I64,
  f64 = 100
};

int64_t size_of(Type type);      // bytes of an element; 1 for i4, of which two share a byte
const char* name_of(Type type);  // "fp32", "fp16", "bf16", ...
const char* name_of(Pass pass);  // "forward", "backward"

// A strided view. Strides count elements; an axis of extent 1 has stride 0, so that a repeated axis needs no branch.
// Absent: type none. In a plan `data` may be null.
struct Tensor {
  char* data = nullptr;
  int64_t shape[4] = {};
  int64_t stride[4] = {};
  Type type = Type::none;

  TILEWISE_INLINE explicit operator bool() const { return type != Type::none; }
  TILEWISE_INLINE int64_t offset(int64_t a, int64_t b, int64_t c, int64_t d = 0) const {
    return a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3];
  }
};

// The element at these indices of a tensor of i32: lengths, offsets, positions, bounds.
TILEWISE_INLINE static int64_t number_at(const Tensor& t, int64_t a, int64_t b = 0, int64_t c = 0) {
  return reinterpret_cast<const int32_t*>(t.data)[t.offset(a, b, c)];
}

// Axes beyond those of a field are ignored: they count as one element.
Tensor tensor_of(const tw_tensor& given, int axes);

inline constexpr int64_t kUnbounded = -1;

struct Dropout {
  uint32_t threshold = 0;  // a pair is dropped if its 16 random bits are below; 0 = no dropout
  float keep_scale = 1;    // 65536 / (65536 - threshold); 0 if every pair is dropped
  uint64_t seed = 0, offset = 0;
  uint64_t key = 0;  // seed + offset * 0x9E3779B97F4A7C15 (contract C9), dropout_state included; CPU: known at run
};

struct Problem {
  Pass pass = Pass::forward;
  int32_t device_type = TW_CPU, device_index = 0;
  int32_t threads = 0;     // 0 = all cores
  int32_t sm_margin = 0;   // CUDA: multiprocessors to leave to others
  int32_t num_splits = 0;  // 0 = chosen
  bool deterministic = false, batch_invariant = false;

  // ---- Sizes. Those of one sequence are in Sequence.
  Type type = Type::none;               // of q, k, v
  int64_t batch = 0;                    // B, sequences
  int64_t heads = 0, heads_kv = 0;      // H % Hk == 0; query head h reads h / group()
  int64_t head_dim = 0, value_dim = 0;  // D, Dv
  int64_t max_rows = 0, max_keys = 0;   // no sequence has more
  bool packed_q = false, packed_k = false;
  int64_t total_rows = 0, total_keys = 0;  // B * Sq or the rows of the packed tensor; the same of k

  // ---- Tensors, axes as in tilewise.h.
  Tensor q, k, v, out;  // (slot, row or key, head, dim)
  Tensor lse;           // (slot, head, row)
  Tensor cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k, batch_index_k;

  // ---- Scores: scale, softcap, bias, ALiBi, mask, softmax with sink, dropout.
  float softmax_scale = 0;
  float softcap = 0;    // 0 = off
  Tensor bias;          // (sequence, head, row, key)
  Tensor alibi_slopes;  // (sequence, head)
  Tensor sink;          // (head)
  Dropout dropout;
  Tensor dropout_state;  // (2) i64: seed and an offset to add, in device memory

  // ---- Masks: structured ones become key intervals (core/mask.h); `mask` is looked at pair by pair.
  bool causal = false, top_left = false, mask_tail = false;
  int64_t window_left = kUnbounded, window_right = kUnbounded;
  int64_t attention_chunk = 0;      // 0 = off
  Tensor mask;                      // (sequence, head, row, key), boolean
  Tensor key_begin, key_end;        // (slot, head, row), i32
  Tensor q_positions, k_positions;  // (slot, row), (slot, key), i32

  // ---- Partials.
  Tensor prior_out, prior_lse;  // like out, like lse; fp32

  // ---- Backward.
  bool accumulate = false;        // add to dq, dk, dv
  Tensor dout, dlse, dq, dk, dv;  // dq, dk, dv: absent = not computed
  Tensor dbias;                   // like bias, summed over the axes where bias repeats
  Tensor dsink;                   // (head)

  TILEWISE_INLINE int64_t group() const { return heads / heads_kv; }  // query heads of a kv head
};

// Arguments -> Problem: every rule that shapes and values must keep, and every message. `grad` null: forward.
// At planning (with_data false) data pointers are not looked at.
Status make_problem(const tw_attention& given, const tw_attention_grad* grad, bool with_data, Problem& problem);

// What only the numbers in lengths, offsets and index tables can break. CPU: before each launch.
Status check_lengths(const Problem& problem);

}  // namespace tilewise
