/// @file
/// Tilewise for C++20: a thin shell over tilewise.h, which says what every field means. Views in, Result out; whoever
/// prefers exceptions adds .or_throw(). No macros; nothing is allocated but the message of a failure.
///
///     std::vector<float> q(B * S * H * D), k(B * S * Hk * D), v(B * S * Hk * D), out(B * S * H * D);
///     const tilewise::Attention attention{.q = {q, B, S, H, D},
///                                         .k = {k, B, S, Hk, D},
///                                         .v = {v, B, S, Hk, D},
///                                         .out = {out, B, S, H, D},
///                                         .causal = true};
///     if (const tilewise::Result result = tilewise::forward(attention); !result) std::puts(result.message.c_str());
///
/// Planned once, run often, with exceptions:
///
///     tilewise::AttentionPlan plan;
///     tilewise::plan_forward(attention, plan).or_throw();
///     std::vector<std::byte> memory(plan.workspace_bytes + 256);
///     tilewise::run(plan, attention, {.workspace = tilewise::aligned(memory)}).or_throw();
#pragma once

#ifndef __cpp_concepts
#error "tilewise.hpp needs C++20 (-std=c++20); from C++11 on there is tilewise.h"
#endif

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "tilewise/tilewise.h"

namespace tilewise {

/// What or_throw() throws; what() is the message.
class Error : public std::runtime_error {
 public:
  /// Of a call that failed with `status`.
  Error(tw_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  /// Never TW_OK.
  tw_status status() const noexcept { return status_; }

 private:
  tw_status status_;
};

/// The outcome of a call.
struct [[nodiscard]] Result {
  tw_status status = TW_OK;  ///< TW_OK or the kind of the failure
  std::string message;       ///< names the argument, its value and the rule; empty if all is well

  /// Whether all is well.
  explicit operator bool() const noexcept { return status == TW_OK; }
  /// Throws an Error unless all is well.
  void or_throw() const {
    if (status != TW_OK) throw Error(status, message);
  }
};

/// IEEE binary16 by its bits.
struct Fp16 {
  std::uint16_t bits;  ///< sign, 5 of exponent, 10 of mantissa
};
/// bfloat16 by its bits: the upper half of a float.
struct Bf16 {
  std::uint16_t bits;  ///< sign, 8 of exponent, 7 of mantissa
};

/// tw_tensor.dtype of a C++ type; TW_NONE of one that no tensor has.
template <class T>
inline constexpr std::int32_t kDtype = TW_NONE;
/// @cond
template <>
inline constexpr std::int32_t kDtype<float> = TW_F32;
template <>
inline constexpr std::int32_t kDtype<Fp16> = TW_F16;
template <>
inline constexpr std::int32_t kDtype<Bf16> = TW_BF16;
template <>
inline constexpr std::int32_t kDtype<bool> = TW_BOOL;
template <>
inline constexpr std::int32_t kDtype<std::int32_t> = TW_I32;
template <>
inline constexpr std::int32_t kDtype<std::int64_t> = TW_I64;
/// @endcond

/// Spans, arrays and vectors of these, the const ones too; a temporary vector is not one.
template <class Range>
concept ElementRange = std::ranges::contiguous_range<Range> && std::ranges::borrowed_range<Range> &&
    (kDtype<std::ranges::range_value_t<Range>> != TW_NONE);

/// A strided view of up to four axes; strides count elements. A default one is an absent tensor; one without memory,
/// for planning, or with strides of its own is made by tw_tensor_of.
struct TensorView : tw_tensor {
  bool fits = true;           ///< the span it was made from holds all its elements
  bool is_const = false;      ///< that span is one of const elements
  double span_elements = -1;  ///< of that span; -1: it was made from none

  /// An absent tensor.
  TensorView() : tw_tensor{} {}
  /// Any strides, memory that is not checked.
  TensorView(const tw_tensor& tensor) : tw_tensor(tensor) {}

  /// Row-major (n0,n1,n2,n3) over memory of that many elements.
  template <ElementRange Range>
  TensorView(Range&& memory, std::int64_t n0, std::int64_t n1 = 1, std::int64_t n2 = 1, std::int64_t n3 = 1)
      : tw_tensor(tw_tensor_of(std::ranges::data(memory), kDtype<std::ranges::range_value_t<Range>>, n0, n1, n2, n3)) {
    const double elements =
        static_cast<double>(n0) * static_cast<double>(n1) * static_cast<double>(n2) * static_cast<double>(n3);
    span_elements = static_cast<double>(std::ranges::size(memory));
    fits = elements <= span_elements;
    is_const = std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<Range>>>;
  }

  /// Says why there is no view of it.
  template <std::ranges::range Range>
  requires(!ElementRange<Range>) TensorView(Range&&, std::int64_t, std::int64_t = 1, std::int64_t = 1, std::int64_t = 1)
      : TensorView() {
    static_assert(std::ranges::contiguous_range<Range>, "elements lie in one piece of memory: not a std::vector<bool>");
    static_assert(kDtype<std::ranges::range_value_t<Range>> != TW_NONE,
                  "elements are float, Fp16, Bf16, bool, int32 or int64");
    static_assert(std::ranges::borrowed_range<Range>, "the memory outlives the view: not a temporary");
  }

  /// The same memory with two axes exchanged: (B,H,S,D) memory as (B,S,H,D).
  TensorView swapped(int a, int b) const {
    TensorView view = tw_tensor_swap(*this, a, b);
    view.fits = fits, view.is_const = is_const, view.span_elements = span_elements;
    return view;
  }
};

/// Fields as in tw_attention, with a bool or an optional where that has a flag.
struct Attention {
  /// As in tw_attention. @{
  TensorView q = {}, k = {}, v = {}, out = {}, lse = {};
  std::int32_t device_type = TW_CPU, device_index = 0;
  std::int32_t threads = 0, sm_margin = 0, num_splits = 0;
  bool deterministic = false, batch_invariant = false;

  TensorView cu_seqlens_q = {}, cu_seqlens_k = {}, seqused_q = {}, seqused_k = {}, leftpad_k = {}, batch_index_k = {};
  std::int64_t max_seqlen_q = 0, max_seqlen_k = 0;

  std::optional<float> softmax_scale = {};
  float softcap = 0;
  TensorView bias = {}, alibi_slopes = {}, sink = {};

  bool causal = false, top_left = false, mask_tail = false;
  std::optional<std::int64_t> window_left = {}, window_right = {};
  std::int64_t attention_chunk = 0;
  TensorView mask = {}, key_begin = {}, key_end = {}, q_positions = {}, k_positions = {};

  float dropout_p = 0;
  std::uint64_t dropout_seed = 0, dropout_offset = 0;
  TensorView dropout_state = {};

  TensorView prior_out = {}, prior_lse = {};
  ///@}
};

/// Fields as in tw_attention_grad.
struct Gradients {
  /// As in tw_attention_grad. @{
  TensorView dout = {}, dlse = {}, dq = {}, dk = {}, dv = {}, dbias = {}, dsink = {};
  bool accumulate = false;
  ///@}
};

/// Results over disjoint keys: fields as in tw_merge.
struct PartialResults {
  /// As in tw_merge. @{
  TensorView out_parts = {}, lse_parts = {};  // the first part
  std::int64_t parts = 0, out_part_stride = 0, lse_part_stride = 0;
  TensorView out = {}, lse = {};
  std::int32_t device_type = TW_CPU, device_index = 0, threads = 0;
  ///@}
};

/// Fields as in tw_exec.
struct Exec {
  std::span<std::byte> workspace = {};   ///< from a multiple of 256 on, see aligned()
  const tw_thread_pool* pool = nullptr;  ///< CPU: the host's threads
  void* stream = nullptr;                ///< CUDA: a cudaStream_t
  tw_fault* fault = nullptr;             ///< CUDA: where the device reports bad numbers
};

/// The part of `memory` that starts at a multiple of 256, as workspaces must.
inline std::span<std::byte> aligned(std::span<std::byte> memory) {
  void* start = memory.data();
  std::size_t left = memory.size();
  if (!std::align(256, 0, start, left)) return {};
  return {static_cast<std::byte*>(start), left};
}

namespace shell {

enum class Use { read, written };

struct NamedView {
  const char* name;
  const TensorView& view;
  Use use = Use::read;
};

inline Result outcome(tw_status status) { return status == TW_OK ? Result{} : Result{status, tw_last_error()}; }

template <class Struct>
Struct sized() {
  Struct zero{};
  zero.struct_size = sizeof zero;
  return zero;
}

inline std::uint32_t flag(bool on, std::uint32_t bit) { return on ? bit : 0; }

inline tw_attention c_struct(const Attention& a) {
  auto c = sized<tw_attention>();
  c.flags = flag(a.causal, TW_CAUSAL) | flag(a.top_left, TW_TOP_LEFT) |
            flag(a.window_left.has_value(), TW_WINDOW_LEFT) | flag(a.window_right.has_value(), TW_WINDOW_RIGHT) |
            flag(a.softmax_scale.has_value(), TW_SOFTMAX_SCALE) | flag(a.mask_tail, TW_MASK_TAIL) |
            flag(a.deterministic, TW_DETERMINISTIC) | flag(a.batch_invariant, TW_BATCH_INVARIANT);
  c.device_type = a.device_type, c.device_index = a.device_index;
  c.threads = a.threads, c.sm_margin = a.sm_margin, c.num_splits = a.num_splits;
  c.q = a.q, c.k = a.k, c.v = a.v, c.out = a.out, c.lse = a.lse;
  c.cu_seqlens_q = a.cu_seqlens_q, c.cu_seqlens_k = a.cu_seqlens_k;
  c.seqused_q = a.seqused_q, c.seqused_k = a.seqused_k, c.leftpad_k = a.leftpad_k, c.batch_index_k = a.batch_index_k;
  c.max_seqlen_q = a.max_seqlen_q, c.max_seqlen_k = a.max_seqlen_k;
  c.softmax_scale = a.softmax_scale.value_or(0), c.softcap = a.softcap;
  c.bias = a.bias, c.alibi_slopes = a.alibi_slopes, c.sink = a.sink;
  c.window_left = a.window_left.value_or(0), c.window_right = a.window_right.value_or(0);
  c.attention_chunk = a.attention_chunk;
  c.mask = a.mask, c.key_begin = a.key_begin, c.key_end = a.key_end;
  c.q_positions = a.q_positions, c.k_positions = a.k_positions;
  c.dropout_p = a.dropout_p, c.dropout_seed = a.dropout_seed, c.dropout_offset = a.dropout_offset;
  c.dropout_state = a.dropout_state;
  c.prior_out = a.prior_out, c.prior_lse = a.prior_lse;
  return c;
}

inline tw_attention_grad c_struct(const Gradients& g) {
  auto c = sized<tw_attention_grad>();
  c.flags = flag(g.accumulate, TW_GRAD_ACCUMULATE);
  c.dout = g.dout, c.dlse = g.dlse, c.dq = g.dq, c.dk = g.dk, c.dv = g.dv, c.dbias = g.dbias, c.dsink = g.dsink;
  return c;
}

inline tw_exec c_struct(const Exec& e) {
  auto c = sized<tw_exec>();
  c.stream = e.stream, c.pool = e.pool, c.fault = e.fault;
  c.workspace = e.workspace.data(), c.workspace_bytes = e.workspace.size();
  return c;
}

// The C interface sees pointers only; that spans are long enough, and not const where written, is checked here.
inline Result check_spans(std::initializer_list<NamedView> views) {
  for (const auto& [name, view, use] : views) {
    if (!view.fits) return {TW_INVALID_ARGUMENT, std::string(name) + ": its span is shorter than its shape"};
    if (use == Use::written && view.is_const) {
      return {TW_INVALID_ARGUMENT, std::string(name) + ": its span is const but the call writes it"};
    }
  }
  return {};
}

inline Result check_spans(const Attention& a, Use results) {
  return check_spans({{"q", a.q},
                      {"k", a.k},
                      {"v", a.v},
                      {"out", a.out, results},
                      {"lse", a.lse, results},
                      {"cu_seqlens_q", a.cu_seqlens_q},
                      {"cu_seqlens_k", a.cu_seqlens_k},
                      {"seqused_q", a.seqused_q},
                      {"seqused_k", a.seqused_k},
                      {"leftpad_k", a.leftpad_k},
                      {"batch_index_k", a.batch_index_k},
                      {"bias", a.bias},
                      {"alibi_slopes", a.alibi_slopes},
                      {"sink", a.sink},
                      {"mask", a.mask},
                      {"key_begin", a.key_begin},
                      {"key_end", a.key_end},
                      {"q_positions", a.q_positions},
                      {"k_positions", a.k_positions},
                      {"dropout_state", a.dropout_state},
                      {"prior_out", a.prior_out},
                      {"prior_lse", a.prior_lse}});
}

inline Result check_spans(const Gradients& g) {
  return check_spans({{"dout", g.dout},
                      {"dlse", g.dlse},
                      {"dq", g.dq, Use::written},
                      {"dk", g.dk, Use::written},
                      {"dv", g.dv, Use::written},
                      {"dbias", g.dbias, Use::written},
                      {"dsink", g.dsink, Use::written}});
}

// `parts` tensors, the first of which is `first`, `stride` elements apart.
inline Result check_parts(const char* name, const TensorView& first, std::int64_t parts, std::int64_t stride) {
  if (first.span_elements < 0 || parts <= 1) return {};
  const double reach = static_cast<double>(parts - 1) * static_cast<double>(stride);
  double elements = 1;
  for (const std::int64_t extent : first.shape) elements *= static_cast<double>(extent);
  if (elements == 0 || (reach >= 0 && reach + elements <= first.span_elements)) return {};
  return {TW_INVALID_ARGUMENT, std::string(name) + ": its span does not hold all parts"};
}

inline Result check_spans(const PartialResults& p) {
  if (Result result = check_parts("out_parts", p.out_parts, p.parts, p.out_part_stride); !result) return result;
  if (Result result = check_parts("lse_parts", p.lse_parts, p.parts, p.lse_part_stride); !result) return result;
  return check_spans({{"out_parts", p.out_parts},
                      {"lse_parts", p.lse_parts},
                      {"out", p.out, Use::written},
                      {"lse", p.lse, Use::written}});
}

}  // namespace shell

/// tw_attention_forward.
inline Result forward(const Attention& attention, const Exec& exec = {}) {
  if (Result result = shell::check_spans(attention, shell::Use::written); !result) return result;
  const tw_attention a = shell::c_struct(attention);
  const tw_exec e = shell::c_struct(exec);
  return shell::outcome(tw_attention_forward(&a, &e));
}

/// tw_attention_backward; `attention` is that of the forward.
inline Result backward(const Attention& attention, const Gradients& gradients, const Exec& exec = {}) {
  if (Result result = shell::check_spans(attention, shell::Use::read); !result) return result;
  if (Result result = shell::check_spans(gradients); !result) return result;
  const tw_attention a = shell::c_struct(attention);
  const tw_attention_grad g = shell::c_struct(gradients);
  const tw_exec e = shell::c_struct(exec);
  return shell::outcome(tw_attention_backward(&a, &g, &e));
}

/// A tw_plan.
struct AttentionPlan : tw_plan {
  /// A plan of nothing, which no run accepts.
  AttentionPlan() : tw_plan{} {}
  /// The kernel that a run will use; "none" before planning.
  const char* kernel() const noexcept { return tw_plan_kernel(this); }
};

/// tw_attention_plan for a forward.
inline Result plan_forward(const Attention& attention, AttentionPlan& plan) {
  const tw_attention a = shell::c_struct(attention);
  return shell::outcome(tw_attention_plan(&a, nullptr, &plan));
}

/// tw_attention_plan for a backward.
inline Result plan_backward(const Attention& attention, const Gradients& gradients, AttentionPlan& plan) {
  const tw_attention a = shell::c_struct(attention);
  const tw_attention_grad g = shell::c_struct(gradients);
  return shell::outcome(tw_attention_plan(&a, &g, &plan));
}

/// tw_attention_run of a forward.
inline Result run(const AttentionPlan& plan, const Attention& attention, const Exec& exec = {}) {
  if (Result result = shell::check_spans(attention, shell::Use::written); !result) return result;
  const tw_attention a = shell::c_struct(attention);
  const tw_exec e = shell::c_struct(exec);
  return shell::outcome(tw_attention_run(&plan, &a, nullptr, &e));
}

/// tw_attention_run of a backward.
inline Result run(const AttentionPlan& plan, const Attention& attention, const Gradients& gradients,
                  const Exec& exec = {}) {
  if (Result result = shell::check_spans(attention, shell::Use::read); !result) return result;
  if (Result result = shell::check_spans(gradients); !result) return result;
  const tw_attention a = shell::c_struct(attention);
  const tw_attention_grad g = shell::c_struct(gradients);
  const tw_exec e = shell::c_struct(exec);
  return shell::outcome(tw_attention_run(&plan, &a, &g, &e));
}

/// tw_attention_merge.
inline Result merge(const PartialResults& p, const Exec& exec = {}) {
  if (Result result = shell::check_spans(p); !result) return result;
  auto m = shell::sized<tw_merge>();
  m.device_type = p.device_type, m.device_index = p.device_index, m.threads = p.threads;
  m.parts = p.parts, m.out_part_stride = p.out_part_stride, m.lse_part_stride = p.lse_part_stride;
  m.out_parts = p.out_parts, m.lse_parts = p.lse_parts, m.out = p.out, m.lse = p.lse;
  const tw_exec e = shell::c_struct(exec);
  return shell::outcome(tw_attention_merge(&m, &e));
}

}  // namespace tilewise
