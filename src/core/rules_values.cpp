#include <cmath>

#include "core/rules.h"

namespace tilewise {
namespace {

constexpr uint32_t kFlags = TW_CAUSAL | TW_TOP_LEFT | TW_WINDOW_LEFT | TW_WINDOW_RIGHT | TW_SOFTMAX_SCALE |
                            TW_MASK_TAIL | TW_V_IN_K | TW_SCALE_PER_SEQUENCE | TW_DETERMINISTIC | TW_BATCH_INVARIANT;
constexpr uint32_t kGradFlags = TW_GRAD_ACCUMULATE;

bool is_given(const tw_tensor& tensor) { return tensor.dtype != TW_NONE; }

void check_flags(const tw_attention& a, const tw_attention_grad* grad, Rules& rules) {
  rules.require((a.flags & ~kFlags) == 0, "flags has unknown bits 0x%x", a.flags & ~kFlags);
  rules.require(a.reserved == 0, "reserved is %d: must be 0", a.reserved);
  rules.require(a.reserved1 == 0, "reserved1 is %d: must be 0", a.reserved1);
  if (!grad) return;
  rules.require((grad->flags & ~kGradFlags) == 0, "grad.flags has unknown bits 0x%x", grad->flags & ~kGradFlags);
}

void check_settings(const tw_attention& a, Rules& rules) {
  check_device(a.device_type, a.device_index, a.threads, rules);
  rules.require(a.sm_margin >= 0, "sm_margin is %d: must not be negative", a.sm_margin);
  rules.require(a.num_splits >= 0, "num_splits is %d: must not be negative", a.num_splits);
}

void check_lengths_and_tables(const tw_attention& a, Rules& rules) {
  rules.require(a.max_seqlen_q >= 0, "max_seqlen_q is %lld: must not be negative", ll(a.max_seqlen_q));
  rules.require(a.max_seqlen_k >= 0, "max_seqlen_k is %lld: must not be negative", ll(a.max_seqlen_k));
  rules.serve(!is_given(a.block_table), "block_table is given: no kernel of this build reads paged keys");
  rules.require(!(is_given(a.batch_index_k) && is_given(a.cu_seqlens_k)),
                "batch_index_k is given with cu_seqlens_k: it needs a dense k");
}

void check_quantisation(const tw_attention& a, Rules& rules) {
  rules.serve(!is_given(a.q_scale), "q_scale is given: no kernel of this build reads scaled types");
  rules.serve(!is_given(a.k_scale), "k_scale is given: no kernel of this build reads scaled types");
  rules.serve(!is_given(a.v_scale), "v_scale is given: no kernel of this build reads scaled types");
  rules.serve(!(a.flags & TW_SCALE_PER_SEQUENCE),
              "scale_per_sequence (C: TW_SCALE_PER_SEQUENCE) is set: no kernel of this build reads scaled types");
  rules.serve(!(a.flags & TW_V_IN_K), "v_in_k (C: TW_V_IN_K) is set: no kernel of this build reads v from k");
}

void check_scores(const tw_attention& a, Rules& rules) {
  const bool has_scale = a.flags & TW_SOFTMAX_SCALE;
  rules.require(has_scale || a.softmax_scale == 0, "softmax_scale is %g but TW_SOFTMAX_SCALE is not set",
                static_cast<double>(a.softmax_scale));
  rules.require(std::isfinite(a.softmax_scale), "softmax_scale is %g: must be finite",
                static_cast<double>(a.softmax_scale));
  rules.require(std::isfinite(a.softcap) && a.softcap >= 0, "softcap is %g: must be finite and not negative",
                static_cast<double>(a.softcap));
  rules.require(a.dropout_p >= 0 && a.dropout_p < 1, "dropout_p is %g: must be at least 0 and less than 1",
                static_cast<double>(a.dropout_p));
  rules.require(!is_given(a.dropout_state) || a.dropout_seed == 0,
                "dropout_seed is %llu but dropout_state holds the seed: give one of them",
                static_cast<unsigned long long>(a.dropout_seed));
}

void check_masks(const tw_attention& a, Rules& rules) {
  const bool left = a.flags & TW_WINDOW_LEFT, right = a.flags & TW_WINDOW_RIGHT;
  rules.require(left || a.window_left == 0, "window_left is %lld but TW_WINDOW_LEFT is not set", ll(a.window_left));
  rules.require(right || a.window_right == 0, "window_right is %lld but TW_WINDOW_RIGHT is not set",
                ll(a.window_right));
  rules.require(a.window_left >= 0,
                "window_left is %lld: must not be negative; leave it out for no limit (C: without TW_WINDOW_LEFT; "
                "Python: None)",
                ll(a.window_left));
  rules.require(a.window_right >= 0,
                "window_right is %lld: must not be negative; leave it out for no limit (C: without TW_WINDOW_RIGHT; "
                "Python: None)",
                ll(a.window_right));
  rules.require(a.attention_chunk >= 0, "attention_chunk is %lld: must not be negative", ll(a.attention_chunk));
  rules.require(!(a.flags & TW_MASK_TAIL) || is_given(a.mask), "mask_tail (C: TW_MASK_TAIL) is set but mask is absent");
  rules.require(!is_given(a.k_positions) || is_given(a.q_positions), "k_positions is given but q_positions is absent");
}

void check_partials(const tw_attention& a, const tw_attention_grad* grad, Rules& rules) {
  rules.require(is_given(a.prior_out) == is_given(a.prior_lse), "%s is given but %s is absent: both or neither",
                is_given(a.prior_out) ? "prior_out" : "prior_lse", is_given(a.prior_out) ? "prior_lse" : "prior_out");
  if (!grad) return;
  rules.require(!is_given(a.prior_out), "prior_out is given in a backward: it is for forward only");
  rules.require(!is_given(grad->dbias) || is_given(a.bias), "dbias is given but bias is absent");
  rules.require(!is_given(grad->dsink) || is_given(a.sink), "dsink is given but sink is absent");
  rules.serve(
      !is_given(a.batch_index_k),
      "batch_index_k is given in a backward: no kernel adds up the gradients of a row of k that sequences share");
}

}  // namespace

void check_device(int32_t device_type, int32_t device_index, int32_t threads, Rules& rules) {
  rules.require(device_type != 0, "device_type is 0: it has no default, choose TW_CPU or TW_CUDA");
  rules.require(device_type == TW_CPU || device_type == TW_CUDA, "device_type is %d: must be TW_CPU or TW_CUDA",
                device_type);
  rules.require(device_index >= 0, "device_index is %d: must not be negative", device_index);
  rules.require(device_type == TW_CUDA || device_index == 0, "device_index is %d: the only CPU is 0", device_index);
  rules.require(threads >= 0, "threads is %d: must not be negative", threads);
}

void check_values(const tw_attention& given, const tw_attention_grad* grad, Rules& rules) {
  check_flags(given, grad, rules);
  check_settings(given, rules);
  check_lengths_and_tables(given, rules);
  check_quantisation(given, rules);
  check_scores(given, rules);
  check_masks(given, rules);
  check_partials(given, grad, rules);
}

}  // namespace tilewise
