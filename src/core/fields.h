// The tensors of a call: their names, where they stand in the C structs and in Problem, and what each may be.
#pragma once

#include "core/problem.h"

namespace tilewise {

// Sets of types, as bits 1 << dtype.
inline constexpr uint32_t type_bit(int32_t dtype) { return 1u << dtype; }
inline constexpr uint32_t kFp32 = type_bit(TW_F32);
inline constexpr uint32_t kFloats = kFp32 | type_bit(TW_F16) | type_bit(TW_BF16);
inline constexpr uint32_t kQueries = kFloats | type_bit(TW_F8E4M3);
inline constexpr uint32_t kKeys = kQueries | type_bit(TW_I8) | type_bit(TW_I4);
inline constexpr uint32_t kBool = type_bit(TW_BOOL);
inline constexpr uint32_t kInt32 = type_bit(TW_I32);
inline constexpr uint32_t kInt64 = type_bit(TW_I64);

enum class Role {
  input,
  result,   // forward writes it, backward reads it
  gradient  // backward writes it
};

// Whether the last axis must have stride 1: kernels read and write whole rows of it.
enum class LastAxis { any, contiguous };

template <class Struct>
struct Field {
  const char* name;
  tw_tensor Struct::*given;
  Tensor Problem::*tensor;
  int axes;
  uint32_t types;
  Role role = Role::input;
  LastAxis last = LastAxis::any;
};

inline constexpr Field<tw_attention> kProblemFields[] = {
    {"q", &tw_attention::q, &Problem::q, 4, kQueries, Role::input, LastAxis::contiguous},
    {"k", &tw_attention::k, &Problem::k, 4, kKeys, Role::input, LastAxis::contiguous},
    {"v", &tw_attention::v, &Problem::v, 4, kKeys, Role::input, LastAxis::contiguous},
    {"out", &tw_attention::out, &Problem::out, 4, kFloats, Role::result, LastAxis::contiguous},
    {"lse", &tw_attention::lse, &Problem::lse, 3, kFp32, Role::result},
    {"cu_seqlens_q", &tw_attention::cu_seqlens_q, &Problem::cu_seqlens_q, 1, kInt32},
    {"cu_seqlens_k", &tw_attention::cu_seqlens_k, &Problem::cu_seqlens_k, 1, kInt32},
    {"seqused_q", &tw_attention::seqused_q, &Problem::seqused_q, 1, kInt32},
    {"seqused_k", &tw_attention::seqused_k, &Problem::seqused_k, 1, kInt32},
    {"leftpad_k", &tw_attention::leftpad_k, &Problem::leftpad_k, 1, kInt32},
    {"batch_index_k", &tw_attention::batch_index_k, &Problem::batch_index_k, 1, kInt32},
    {"bias", &tw_attention::bias, &Problem::bias, 4, kFloats},
    {"alibi_slopes", &tw_attention::alibi_slopes, &Problem::alibi_slopes, 2, kFp32},
    {"mask", &tw_attention::mask, &Problem::mask, 4, kBool},
    {"key_begin", &tw_attention::key_begin, &Problem::key_begin, 3, kInt32},
    {"key_end", &tw_attention::key_end, &Problem::key_end, 3, kInt32},
    {"q_positions", &tw_attention::q_positions, &Problem::q_positions, 2, kInt32},
    {"k_positions", &tw_attention::k_positions, &Problem::k_positions, 2, kInt32},
    {"sink", &tw_attention::sink, &Problem::sink, 1, kFp32},
    {"dropout_state", &tw_attention::dropout_state, &Problem::dropout_state, 1, kInt64},
    {"prior_out", &tw_attention::prior_out, &Problem::prior_out, 4, kFp32, Role::input, LastAxis::contiguous},
    {"prior_lse", &tw_attention::prior_lse, &Problem::prior_lse, 3, kFp32},
};

inline constexpr Field<tw_attention_grad> kGradFields[] = {
    {"dout", &tw_attention_grad::dout, &Problem::dout, 4, kFloats, Role::input, LastAxis::contiguous},
    {"dlse", &tw_attention_grad::dlse, &Problem::dlse, 3, kFp32},
    {"dq", &tw_attention_grad::dq, &Problem::dq, 4, kFloats, Role::gradient, LastAxis::contiguous},
    {"dk", &tw_attention_grad::dk, &Problem::dk, 4, kFloats, Role::gradient, LastAxis::contiguous},
    {"dv", &tw_attention_grad::dv, &Problem::dv, 4, kFloats, Role::gradient, LastAxis::contiguous},
    {"dbias", &tw_attention_grad::dbias, &Problem::dbias, 4, kFloats, Role::gradient},
    {"dsink", &tw_attention_grad::dsink, &Problem::dsink, 1, kFp32, Role::gradient},
};

// f(name, tensor, role) for every tensor of the problem that is there.
template <class F>
void each_tensor(const Problem& problem, F f) {
  for (const auto& field : kProblemFields) {
    if (problem.*field.tensor) f(field.name, problem.*field.tensor, field.role);
  }
  for (const auto& field : kGradFields) {
    if (problem.*field.tensor) f(field.name, problem.*field.tensor, field.role);
  }
}

inline bool is_written(Role role, Pass pass) {
  return pass == Pass::forward ? role == Role::result : role == Role::gradient;
}

}  // namespace tilewise
