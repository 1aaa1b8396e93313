#include <climits>

#include "core/numbers.h"
#include "cuda/common/alignment.h"
#include "cuda/v1/host.h"

namespace tilewise::cuda::v1 {
namespace {

constexpr int64_t kMostDims = 256, kStep = 8;

bool serves_dim(int64_t dim) { return dim % kStep == 0 && dim <= kMostDims; }

// What is asked for beyond scale and masks; null if nothing is.
const char* extra_of(const Problem& p) {
  if (p.bias) return "bias";
  if (p.alibi_slopes) return "ALiBi";
  if (p.softcap > 0) return "softcap";
  if (p.mask) return "mask";
  if (p.dropout.threshold > 0) return "dropout";
  if (p.prior_out || p.prior_lse) return "prior_out";
  if (p.dsink) return "dsink";
  return nullptr;
}

}  // namespace

void refuse(const Problem& p, Text& reason) {
  if (p.type != Type::f16 && p.type != Type::bf16) {
    reason.format("%s: it multiplies fp16 and bf16", name_of(p.type));
  } else if (!serves_dim(p.head_dim) || !serves_dim(p.value_dim)) {
    reason.format("head sizes %lld and %lld: it serves multiples of 8 up to 256", ll(p.head_dim), ll(p.value_dim));
  } else if (const char* extra = extra_of(p)) {
    reason.format("%s: the algorithm has scale and masks only", extra);
  } else if (p.batch * p.heads * greater(1, p.num_splits) > INT_MAX) {
    reason.format("%lld sequences x %lld heads in %lld splits: a GPU starts 2^31 - 1 thread blocks at most",
                  ll(p.batch), ll(p.heads), ll(greater(1, p.num_splits)));
  }
  refuse_unaligned("q", p.q, kCopyElements, reason);
  refuse_unaligned("k", p.k, kCopyElements, reason);
  refuse_unaligned("v", p.v, kCopyElements, reason);
  refuse_unaligned("out", p.out, kCopyElements, reason);
}

}  // namespace tilewise::cuda::v1
