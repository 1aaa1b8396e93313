// CaseData: the memory of a case. Everything that the contract calls dead is NaN: gaps of strides, rows and keys past
// their length, keys that no row may see, elements of mask and bias at pairs that other masks take.
#pragma once

#include "cases/case.h"
#include "cases/random.h"
#include "core/mask.h"

namespace tilewise::cases {

// What a call writes.
struct Outputs {
  Stored out, lse;                  // forward
  Stored dq, dk, dv, dbias, dsink;  // backward
};

struct NamedOutput {
  const char* name;
  Stored Outputs::*output;
};
std::span<const NamedOutput> outputs_of(Pass pass);

class CaseData {
 public:
  explicit CaseData(const Case& description);

  const Case& description() const { return case_; }

  // ---- Masks, pair by pair, in the contract's words: they share no code with core/mask.cpp.
  bool in_range(int64_t b, int64_t h, int64_t i, int64_t j) const;  // all masks but `mask` and bias
  KeyRange range(int64_t b, int64_t h, int64_t i) const { return ranges_[(b * case_.heads + h) * case_.seqlen_q + i]; }
  bool row_counts(int64_t b, int64_t h, int64_t i) const;  // false: the row gets what a row without keys gets

  // True if some row that reads head `kv` of key j may see it, or a key before and one after it.
  bool key_counts(int64_t b, int64_t kv, int64_t j) const;

  // ---- Where a row and a key lie.
  int64_t q_slot(int64_t b) const { return case_.packed_q.empty() ? b : 0; }
  int64_t q_row(int64_t b, int64_t i) const { return i + (case_.packed_q.empty() ? 0 : first_q_[b]); }
  int64_t k_slot(int64_t b) const;
  int64_t k_row(int64_t b, int64_t j) const { return j + (case_.packed_k.empty() ? 0 : first_k_[b]); }

  // ---- Outputs before the call: poison, or what gradients are added to.
  Outputs outputs() const;                                // as the case asks, between guards
  Outputs dense_outputs(std::optional<Type> type) const;  // the same numbers, or 0 (lse: -inf); type: of all of them
  Outputs zero_outputs() const;                           // dense, fp64

  // ---- The call. `results` is written; in a backward, out and lse are read.
  tw_attention attention(const Outputs& results, Pass pass) const;
  tw_attention_grad gradients(const Outputs& results) const;

  Stored q, k, v, dout, dlse;
  Stored bias, alibi, sink, mask, key_begin, key_end, q_positions, k_positions;
  Stored cu_seqlens_q, cu_seqlens_k, used_q, used_k, left_pad, batch_index;
  Stored prior_out, prior_lse;

 private:
  Layout layout_of(int tensor) const;
  Shape rows_shape(int64_t dim) const;  // of q, out, dout
  Shape keys_shape(int64_t dim) const;  // of k, v
  Shape lse_shape() const;
  Shape pairs_shape(const Axes& axes, int64_t columns) const;  // of mask and bias; extent 1 where they repeat
  Type out_type() const { return case_.fp32_out ? Type::f32 : case_.type; }
  Type gradient_type() const { return case_.fp32_gradients ? Type::f32 : case_.type; }

  void make_lengths();
  void make_positions(Random& random);
  void make_intervals(Random& random);
  void find_ranges();
  void find_seen_keys();
  void make_pairs(Random& random);  // mask and bias
  void make_rows(Random& random);   // q, dout, dlse, prior
  void make_keys(Random& random);   // k, v
  void make_heads(Random& random);  // sink, alibi
  Outputs make_outputs(std::optional<Type> type, bool as_asked) const;

  Case case_;
  int64_t k_slots_ = 0;
  std::vector<int64_t> first_q_, first_k_;  // offsets of packed sequences, the end last
  std::vector<KeyRange> ranges_;            // (b, h, i)
  std::vector<KeyRange> seen_;              // (b, kv head): from the first to the last key that a row sees
};

}  // namespace tilewise::cases
