// What only the numbers in lengths, offsets and index tables can break. The host reads them on the CPU alone.
#include "core/sequence.h"

namespace tilewise {
namespace {

Status check_offsets(const char* name, const Tensor& offsets, const char* tensor, int64_t total) {
  if (!offsets) return {};
  const int64_t last = offsets.shape[0] - 1;
  if (number_at(offsets, 0) != 0) {
    return failure(TW_INVALID_ARGUMENT, "%s[0] is %lld: offsets start at 0", name, ll(number_at(offsets, 0)));
  }
  for (int64_t i = 1; i <= last; ++i) {
    const int64_t before = number_at(offsets, i - 1), here = number_at(offsets, i);
    if (here < before) {
      return failure(TW_INVALID_ARGUMENT, "%s[%lld] is %lld after %lld: offsets must ascend", name, ll(i), ll(here),
                     ll(before));
    }
  }
  if (number_at(offsets, last) > total) {
    return failure(TW_INVALID_ARGUMENT, "%s[%lld] is %lld but %s.shape[1] is %lld: offsets end inside it", name,
                   ll(last), ll(number_at(offsets, last)), tensor, ll(total));
  }
  return {};
}

// How long the places of sequences are.
struct Slots {
  const Tensor& offsets;
  int64_t dense;

  int64_t length(int64_t b) const { return offsets ? number_at(offsets, b + 1) - number_at(offsets, b) : dense; }
};

struct Bound {
  const char* offsets_name;
  const char* used_name;
  const char* source;
  int64_t longest;
};

Status check_used(const Tensor& used, const Slots& slots, const Bound& bound, int64_t batch) {
  if (!used && !slots.offsets) return {};  // make_problem has compared the one length
  for (int64_t b = 0; b < batch; ++b) {
    const int64_t slot = slots.length(b), length = used ? number_at(used, b) : slot;
    if (used && (length < 0 || length > slot)) {
      return failure(TW_INVALID_ARGUMENT, "%s[%lld] is %lld: must be 0..%lld, the room of the sequence",
                     bound.used_name, ll(b), ll(length), ll(slot));
    }
    if (length > bound.longest) {
      return failure(TW_INVALID_ARGUMENT, "%s gives sequence %lld the length %lld: %s allows %lld",
                     used ? bound.used_name : bound.offsets_name, ll(b), ll(length), bound.source, ll(bound.longest));
    }
  }
  return {};
}

Status check_left_pad(const Problem& problem, const Slots& slots) {
  if (!problem.leftpad_k) return {};
  for (int64_t b = 0; b < problem.batch; ++b) {
    const int64_t pad = number_at(problem.leftpad_k, b);
    const int64_t keys = problem.seqused_k ? number_at(problem.seqused_k, b) : slots.length(b);
    if (pad < 0 || pad > keys) {
      return failure(TW_INVALID_ARGUMENT, "leftpad_k[%lld] is %lld: must be 0..%lld, the keys of the sequence", ll(b),
                     ll(pad), ll(keys));
    }
  }
  return {};
}

Status check_batch_index(const Problem& problem) {
  if (!problem.batch_index_k) return {};
  for (int64_t b = 0; b < problem.batch; ++b) {
    const int64_t slot = number_at(problem.batch_index_k, b);
    if (slot < 0 || slot >= problem.k.shape[0]) {
      return failure(TW_INVALID_ARGUMENT, "batch_index_k[%lld] is %lld: k.shape[0] is %lld", ll(b), ll(slot),
                     ll(problem.k.shape[0]));
    }
  }
  return {};
}

// live_keys searches them.
Status check_positions(const Problem& problem) {
  if (!problem.k_positions) return {};
  for (int64_t b = 0; b < problem.batch; ++b) {
    const Sequence s = sequence_of(problem, b);
    for (int64_t j = 1; j < s.keys; ++j) {
      const int64_t before = key_position(problem, s, j - 1), here = key_position(problem, s, j);
      if (here < before) {
        return failure(TW_INVALID_ARGUMENT,
                       "k_positions of key %lld of sequence %lld is %lld after %lld: must not descend", ll(j), ll(b),
                       ll(here), ll(before));
      }
    }
  }
  return {};
}

const char* source_of_bound(int64_t bound, const Tensor& mask, const Tensor& bias, int axis, const char* max_name) {
  if (mask && mask.shape[axis] == bound) return axis == 2 ? "mask.shape[2]" : "mask.shape[3]";
  if (bias && bias.shape[axis] == bound) return axis == 2 ? "bias.shape[2]" : "bias.shape[3]";
  return max_name;
}

}  // namespace

Status check_lengths(const Problem& p) {
  const Slots rows{p.cu_seqlens_q, p.q.shape[1]}, keys{p.cu_seqlens_k, p.k.shape[1]};
  const Bound row_bound{"cu_seqlens_q", "seqused_q", source_of_bound(p.max_rows, p.mask, p.bias, 2, "max_seqlen_q"),
                        p.max_rows};
  const Bound key_bound{"cu_seqlens_k", "seqused_k", source_of_bound(p.max_keys, p.mask, p.bias, 3, "max_seqlen_k"),
                        p.max_keys};
  if (Status s = check_offsets("cu_seqlens_q", p.cu_seqlens_q, "q", p.total_rows); !s.ok()) return s;
  if (Status s = check_offsets("cu_seqlens_k", p.cu_seqlens_k, "k", p.total_keys); !s.ok()) return s;
  if (Status s = check_used(p.seqused_q, rows, row_bound, p.batch); !s.ok()) return s;
  if (Status s = check_used(p.seqused_k, keys, key_bound, p.batch); !s.ok()) return s;
  if (Status s = check_left_pad(p, keys); !s.ok()) return s;
  if (Status s = check_batch_index(p); !s.ok()) return s;
  return check_positions(p);
}

}  // namespace tilewise
