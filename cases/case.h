// Case: one call in plain values. Everything about it follows from these, so its name and its seed replay it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cases/stored.h"

namespace tilewise::cases {

// What q, k and v hold. Random data hides many faults (lse is about ln Sk, padding is harmless); these show them.
enum class Fill : uint8_t {
  normal,
  zero_query,     // all scores equal: out is the mean of the live values
  ones_value,     // out is 1
  one_hot_value,  // v[j] = unit vector j % Dv: out shows which keys were seen
  equal_keys,     // all scores of a row equal, not 0
  lowest,         // every score about -1e30 (fp16: -6e4), a real score all the same
  negative,       // scores about -100: exp(0 - lse) would overflow
  late_maximum,   // the last key's score towers over the others
  early_maximum,  // the first key's
  rising,         // each stretch of 32 keys scores higher than the one before
  falling,        // the same for kernels that begin at the last key
  huge            // q * 100
};
const char* name_of(Fill fill);

// Which axes of a broadcast tensor (sequence, head, row, key) are whole: "bhqk". '1' = extent 1, '0' = whole extent,
// stride 0. Empty = the tensor is absent.
using Axes = std::string;

struct Case {
  // ---- Sizes. Packed: seqlen_q, seqlen_k are those of the longest slot and follow from packed_q, packed_k.
  int64_t batch = 1, seqlen_q = 1, seqlen_k = 1;
  int64_t heads = 1, heads_kv = 1, head_dim = 64, value_dim = 64;
  Type type = Type::f32;
  Layout layout = Layout::rows_outside;
  bool mixed_layouts = false;  // q, k, v, out, dout and the gradients each in another layout, starting with `layout`
  bool fp32_out = false, fp32_gradients = false;

  // ---- Lengths, one a sequence; empty = absent.
  std::vector<int64_t> packed_q, packed_k;  // slots of packed tensors
  std::vector<int64_t> used_q, used_k, left_pad, batch_index;
  int64_t spare = 0;        // packed: tokens past the last offset
  bool max_seqlen = false;  // max_seqlen_q, max_seqlen_k are given

  // ---- Scores.
  std::optional<float> scale;
  float softcap = 0, dropout_p = 0;
  Axes bias;
  Type bias_type = Type::f32;
  bool infinite_bias = false;  // some elements are -inf
  Axes alibi;                  // "bh" or "1h"
  bool sink = false;

  // ---- Masks.
  bool causal = false, top_left = false;
  int64_t window_left = kUnbounded, window_right = kUnbounded, chunk = 0;
  Axes mask;
  int64_t mask_tail = 0;          // > 0: TW_MASK_TAIL, mask covers so many keys
  Axes key_begin, key_end;        // "bhq"
  Axes q_positions, k_positions;  // "bq", "bk"; packed: over all tokens

  // ---- Passes.
  bool lse = true;     // wanted in forward; backward always has it
  bool prior = false;  // forward merges; backward reads the merged out and lse, as a ring step does
  bool backward = true;
  bool accumulate = false, dlse = false, dbias = false, dsink = false;
  bool dq = true, dk = true, dv = true;
  bool deterministic = false, batch_invariant = false;
  int threads = 0, num_splits = 0;

  Fill fill = Fill::normal;
  uint64_t seed = 1;
  bool slow = false;

  std::string name() const;  // one line, unique for what is set

  // Lengths as the contract reads them.
  int64_t row_slot(int64_t b) const { return packed_q.empty() ? seqlen_q : packed_q[b]; }
  int64_t key_slot(int64_t b) const { return packed_k.empty() ? seqlen_k : packed_k[b]; }
  int64_t rows(int64_t b) const { return used_q.empty() ? row_slot(b) : std::min(used_q[b], row_slot(b)); }
  int64_t keys(int64_t b) const { return used_k.empty() ? key_slot(b) : std::min(used_k[b], key_slot(b)); }
};

// One option with its numbers, put on a case of two sequences.
using Option = void (*)(Case&);
std::span<const Option> all_options();

// The table that every kernel runs. Those marked `slow` are left out of a quick test.
std::span<const Case> all_cases();

// The edges and one shape of each option, for machines that are emulated.
std::span<const Case> few_cases();

// What tiles of tensor cores can get wrong, for GPUs: beside all_cases().
std::span<const Case> tile_cases();

// A random legal problem of any feature, small enough to be quick; the same for the same numbers.
Case random_case(uint64_t seed, int64_t index);

}  // namespace tilewise::cases
