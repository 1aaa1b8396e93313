#include "core/rules.h"

namespace tilewise {
namespace {

constexpr int64_t kMostHeadDim = 512;
constexpr int64_t kMostUnits = int64_t{1} << 58;  // sequences x heads x longest length: kernels count their work in it

struct Named {
  const char* name;
  const Tensor& tensor;
};

Extent or_one(Extent extent) { return {extent.size, extent.source, true}; }

// The extents that other tensors share: of q (dense or packed), of k and v, and of whole sequences.
struct Sizes {
  Extent batch;
  Extent slots_q, rows, heads, head_dim;
  Extent slots_k, keys, heads_kv, value_dim;

  explicit Sizes(const Problem& p)
      : batch{p.batch, p.packed_q ? "cu_seqlens_q.shape[0] - 1" : "q.shape[0]"},
        slots_q{p.q.shape[0], "q.shape[0]"},
        rows{p.q.shape[1], "q.shape[1]"},
        heads{p.heads, "q.shape[2]"},
        head_dim{p.head_dim, "q.shape[3]"},
        slots_k{p.k.shape[0], "k.shape[0]"},
        keys{p.k.shape[1], "k.shape[1]"},
        heads_kv{p.heads_kv, "k.shape[2]"},
        value_dim{p.value_dim, "v.shape[3]"} {}
};

void check_heads(const Problem& p, Rules& rules) {
  rules.require(p.heads > 0, "q.shape[2] is 0: needs at least one head");
  rules.require(p.heads_kv > 0, "k.shape[2] is 0 and q.shape[2] is %lld: needs at least one head", ll(p.heads));
  rules.require(p.head_dim > 0, "q.shape[3] is 0: head_dim must be 1..512");
  rules.require(p.value_dim > 0, "v.shape[3] is 0: the head_dim of v must be 1..512");
  rules.serve(p.head_dim <= kMostHeadDim, "q.shape[3] is %lld: head_dim must be 1..512", ll(p.head_dim));
  rules.serve(p.value_dim <= kMostHeadDim, "v.shape[3] is %lld: the head_dim of v must be 1..512", ll(p.value_dim));
  if (!rules.kept()) return;
  rules.require(p.heads % p.heads_kv == 0,
                "k.shape[2] is %lld but q.shape[2] is %lld: heads of q must be a multiple of those of k; axes are "
                "(B,S,H,D), and (B,H,S,D) memory needs layout=\"bhsd\" (command: --layout bhsd; C: tw_tensor_swap)",
                ll(p.heads_kv), ll(p.heads));
}

// As many sequences of keys as of queries. Where one of the two is packed, offsets were perhaps forgotten.
void check_batches(const Problem& p, const Sizes& sizes, Rules& rules) {
  const int64_t offsets_q = p.cu_seqlens_q.shape[0], offsets_k = p.cu_seqlens_k.shape[0], slots_k = p.k.shape[0];
  if (p.packed_q && p.packed_k) {
    rules.require(offsets_k == offsets_q,
                  "cu_seqlens_k.shape[0] is %lld but cu_seqlens_q.shape[0] is %lld: they must be equal", ll(offsets_k),
                  ll(offsets_q));
  } else if (p.packed_k) {
    rules.require(offsets_k - 1 == p.batch,
                  "cu_seqlens_k.shape[0] is %lld but q.shape[0] is %lld: must be one more, or give cu_seqlens_q if q "
                  "is packed",
                  ll(offsets_k), ll(p.batch));
  } else if (p.packed_q && !p.batch_index_k) {
    rules.require(slots_k == p.batch,
                  "k.shape[0] is %lld but cu_seqlens_q.shape[0] - 1 is %lld: they must be equal, or give cu_seqlens_k "
                  "if k is packed",
                  ll(slots_k), ll(p.batch));
  } else if (!p.batch_index_k) {
    check_extents("k", p.k, {sizes.batch}, rules);
  }
  rules.require(!p.batch_index_k || slots_k > 0 || p.batch == 0,
                "k.shape[0] is 0: batch_index_k chooses among its rows");
}

void check_forms(const Problem& p, const Sizes& sizes, Rules& rules) {
  if (p.packed_q) {
    rules.require(p.cu_seqlens_q.shape[0] > 0, "cu_seqlens_q.shape[0] is 0: it holds one more offset than sequences");
    rules.require(p.q.shape[0] == 1, "q.shape[0] is %lld: must be 1 with cu_seqlens_q", ll(p.q.shape[0]));
  }
  check_batches(p, sizes, rules);
  if (p.packed_k) {
    rules.require(p.k.shape[0] == 1, "k.shape[0] is %lld: must be 1 with cu_seqlens_k", ll(p.k.shape[0]));
  }
}

void check_max_seqlen(const char* name, int64_t given, const char* tensor, int64_t slot, bool fixed_length,
                      Rules& rules) {
  rules.require(given == 0 || given >= slot || !fixed_length,
                "%s is %lld but %s.shape[1] is %lld: every sequence is longer", name, ll(given), tensor, ll(slot));
}

// Rows or keys as axes of bias and mask: those of a slot, or of the longest sequence. In the packed form only the
// numbers in device memory tell whether they cover it.
void check_pairs_axis(const char* name, const Tensor& t, int axis, Extent slot, const char* max_name, int64_t max_given,
                      bool packed, Rules& rules) {
  const int64_t extent = t.shape[axis];
  if (!t || packed || (max_given > 0 && extent == max_given)) return;
  rules.require(extent == slot.size || extent == 1,
                "%s.shape[%d] is %lld but %s is %lld: must be that, %s, or 1 to repeat", name, axis, ll(extent),
                slot.source, ll(slot.size), max_name);
}

void check_scores_and_masks(const tw_attention& given, const Problem& p, const Sizes& sizes, Rules& rules) {
  for (const auto& [name, tensor] : {Named{"bias", p.bias}, Named{"mask", p.mask}}) {
    check_extents(name, tensor, {or_one(sizes.batch), or_one(sizes.heads)}, rules);
    check_pairs_axis(name, tensor, 2, sizes.rows, "max_seqlen_q", given.max_seqlen_q, p.packed_q, rules);
    if (&tensor == &p.mask && p.mask_tail) continue;
    check_pairs_axis(name, tensor, 3, sizes.keys, "max_seqlen_k", given.max_seqlen_k, p.packed_k, rules);
  }
  check_extents("alibi_slopes", p.alibi_slopes, {or_one(sizes.batch), sizes.heads}, rules);
  check_extents("key_begin", p.key_begin, {or_one(sizes.slots_q), or_one(sizes.heads), sizes.rows}, rules);
  check_extents("key_end", p.key_end, {or_one(sizes.slots_q), or_one(sizes.heads), sizes.rows}, rules);
  check_extents("q_positions", p.q_positions, {or_one(sizes.slots_q), sizes.rows}, rules);
  check_extents("k_positions", p.k_positions, {or_one(sizes.slots_k), sizes.keys}, rules);
  check_extents("sink", p.sink, {sizes.heads}, rules);
  check_extents("dropout_state", p.dropout_state, {{2, "seed and offset"}}, rules);
}

void check_gradients(const Problem& p, const Sizes& sizes, Rules& rules) {
  check_extents("dout", p.dout, {sizes.slots_q, sizes.rows, sizes.heads, sizes.value_dim}, rules);
  check_extents("dlse", p.dlse, {sizes.slots_q, sizes.heads, sizes.rows}, rules);
  check_extents("dq", p.dq, {sizes.slots_q, sizes.rows, sizes.heads, sizes.head_dim}, rules);
  check_extents("dk", p.dk, {sizes.slots_k, sizes.keys, sizes.heads_kv, sizes.head_dim}, rules);
  check_extents("dv", p.dv, {sizes.slots_k, sizes.keys, sizes.heads_kv, sizes.value_dim}, rules);
  check_extents("dbias", p.dbias,
                {{p.bias.shape[0], "bias.shape[0]"},
                 {p.bias.shape[1], "bias.shape[1]"},
                 {p.bias.shape[2], "bias.shape[2]"},
                 {p.bias.shape[3], "bias.shape[3]"}},
                rules);
  check_extents("dsink", p.dsink, {sizes.heads}, rules);
}

void check_units(const char* what, int64_t batch, int64_t heads, int64_t length, Rules& rules) {
  int64_t units;
  const bool fits = !__builtin_mul_overflow(batch, heads, &units) && !__builtin_mul_overflow(units, length, &units);
  rules.require(fits && units <= kMostUnits, "%lld sequences x %lld heads x %lld %s: more than 2^58", ll(batch),
                ll(heads), ll(length), what);
}

}  // namespace

void check_extents(const char* name, const Tensor& tensor, std::initializer_list<Extent> extents, Rules& rules) {
  if (!tensor) return;
  int axis = 0;
  for (const Extent& wanted : extents) {
    const int64_t extent = tensor.shape[axis];
    rules.require(extent == wanted.size || (wanted.may_repeat && extent == 1),
                  "%s.shape[%d] is %lld but %s is %lld: %s", name, axis, ll(extent), wanted.source, ll(wanted.size),
                  wanted.may_repeat ? "must be that, or 1 to repeat" : "they must be equal");
    ++axis;
  }
}

void check_shapes(const tw_attention& given, const Problem& p, Rules& rules) {
  const Sizes sizes(p);
  check_heads(p, rules);
  check_forms(p, sizes, rules);
  check_extents("k", p.k, {sizes.slots_k, sizes.keys, sizes.heads_kv, sizes.head_dim}, rules);
  check_extents("v", p.v, {sizes.slots_k, sizes.keys, sizes.heads_kv}, rules);
  check_extents("out", p.out, {sizes.slots_q, sizes.rows, sizes.heads, sizes.value_dim}, rules);
  check_extents("lse", p.lse, {sizes.slots_q, sizes.heads, sizes.rows}, rules);
  check_extents("prior_out", p.prior_out, {sizes.slots_q, sizes.rows, sizes.heads, sizes.value_dim}, rules);
  check_extents("prior_lse", p.prior_lse, {sizes.slots_q, sizes.heads, sizes.rows}, rules);
  for (const auto& [name, tensor] : {Named{"seqused_q", p.seqused_q}, Named{"seqused_k", p.seqused_k},
                                     Named{"leftpad_k", p.leftpad_k}, Named{"batch_index_k", p.batch_index_k}}) {
    check_extents(name, tensor, {sizes.batch}, rules);
  }
  check_max_seqlen("max_seqlen_q", given.max_seqlen_q, "q", p.q.shape[1], !p.packed_q && !p.seqused_q, rules);
  check_max_seqlen("max_seqlen_k", given.max_seqlen_k, "k", p.k.shape[1], !p.packed_k && !p.seqused_k, rules);
  check_scores_and_masks(given, p, sizes, rules);
  check_gradients(p, sizes, rules);
  check_units("rows", p.batch, p.heads, p.max_rows, rules);
  check_units("keys", p.batch, p.heads_kv, p.max_keys, rules);
}

}  // namespace tilewise
