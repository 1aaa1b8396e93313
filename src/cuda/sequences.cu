#include "core/find_sequence.h"
#include "cuda/common/element.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/search.cuh"
#include "cuda/common/warp.cuh"
#include "cuda/sequences.h"

namespace tilewise::cuda {
namespace {

constexpr int kThreads = 256, kTokensOfBlock = kThreads / kWarp;  // a warp clears one token

// ---- What no sequence owns.

// The sequence that may own a token.
TILEWISE_DEVICE int64_t sequence_at(const Tensor& offsets, int64_t batch, int64_t token) {
  return last_that_begins_by(token, batch, [&](int64_t b) { return number_at(offsets, b); });
}

TILEWISE_DEVICE bool is_owned_row(const Problem& p, int64_t slot, int64_t token) {
  if (p.batch == 0) return false;
  const Sequence s = find_sequence(p, p.packed_q ? sequence_at(p.cu_seqlens_q, p.batch, token) : slot);
  return token >= s.first_row && token < s.first_row + s.rows;
}
TILEWISE_DEVICE bool is_owned_key(const Problem& p, int64_t slot, int64_t token) {
  if (p.batch == 0) return false;
  const Sequence s = find_sequence(p, p.packed_k ? sequence_at(p.cu_seqlens_k, p.batch, token) : slot);
  return token >= s.first_key && token < s.first_key + s.keys;
}

// All heads of one token of a tensor (slot, token, head, dim).
TILEWISE_DEVICE void clear_token(const Tensor& t, int64_t slot, int64_t token) {
  if (!t) return;
  for (int64_t h = 0; h < t.shape[2]; ++h) {
    for (int64_t d = lane(); d < t.shape[3]; d += kWarp) write_element(t, t.offset(slot, token, h, d), 0);
  }
}
TILEWISE_DEVICE void clear_lse(const Tensor& lse, int64_t slot, int64_t token) {
  if (!lse) return;
  for (int64_t h = lane(); h < lse.shape[1]; h += kWarp) {
    write_element(lse, lse.offset(slot, h, token), -INFINITY);
  }
}

// A warp for each (slot, token).
__global__ __launch_bounds__(kThreads) void clear_rows(const __grid_constant__ Problem p) {
  const int64_t index = int64_t{blockIdx.x} * kTokensOfBlock + threadIdx.x / kWarp;
  const int64_t slot = index / p.q.shape[1], token = index % p.q.shape[1];
  if (slot >= p.q.shape[0] || is_owned_row(p, slot, token)) return;
  if (p.pass == Pass::forward) {
    clear_token(p.out, slot, token);
    clear_lse(p.lse, slot, token);
  } else {
    clear_token(p.dq, slot, token);
  }
}

__global__ __launch_bounds__(kThreads) void clear_keys(const __grid_constant__ Problem p) {
  const int64_t index = int64_t{blockIdx.x} * kTokensOfBlock + threadIdx.x / kWarp;
  const int64_t slot = index / p.k.shape[1], token = index % p.k.shape[1];
  if (slot >= p.k.shape[0] || is_owned_key(p, slot, token)) return;
  clear_token(p.dk, slot, token);
  clear_token(p.dv, slot, token);
}

Grid grid_of(int64_t tokens) { return {.blocks = ceil_div(tokens, kTokensOfBlock), .threads = kThreads}; }

// ---- Faults. The codes are those of tw_fault.

enum FaultCode : int32_t { kOffset = 1, kLength = 2, kRow = 4 };

TILEWISE_DEVICE void record(tw_fault* fault, FaultCode code, int64_t sequence, int64_t index, int64_t value) {
  if (atomicCAS(&fault->code, 0, code) != 0) return;
  fault->sequence = static_cast<int32_t>(sequence);
  fault->index = static_cast<int32_t>(index);
  fault->value = static_cast<int32_t>(value);
}

TILEWISE_DEVICE void check_offsets(const Tensor& offsets, int64_t b, int64_t total, tw_fault* fault) {
  if (!offsets) return;
  const int64_t here = number_at(offsets, b), next = number_at(offsets, b + 1);
  if (b == 0 && here != 0) record(fault, kOffset, b, b, here);
  if (next < here || next > total) record(fault, kOffset, b, b + 1, next);
}

TILEWISE_DEVICE void check_used(const Tensor& used, int64_t b, int64_t slot, int64_t longest, tw_fault* fault) {
  const int64_t length = used ? number_at(used, b) : slot;
  if (length < 0 || length > slot || length > longest) record(fault, kLength, b, b, length);
}

TILEWISE_DEVICE int64_t slot_of(const Tensor& offsets, int64_t b, int64_t dense) {
  return offsets ? int64_t{number_at(offsets, b + 1)} - number_at(offsets, b) : dense;
}

// One block, so that what is recorded is near the first in order.
__global__ __launch_bounds__(kThreads) void find_faults(const __grid_constant__ Problem p, tw_fault* fault) {
  for (int64_t b = threadIdx.x; b < p.batch; b += kThreads) {
    check_offsets(p.cu_seqlens_q, b, p.total_rows, fault);
    check_offsets(p.cu_seqlens_k, b, p.total_keys, fault);
    const int64_t row_slot = slot_of(p.cu_seqlens_q, b, p.q.shape[1]);
    const int64_t key_slot = slot_of(p.cu_seqlens_k, b, p.k.shape[1]);
    if (p.seqused_q || p.packed_q) check_used(p.seqused_q, b, row_slot, p.max_rows, fault);
    if (p.seqused_k || p.packed_k) check_used(p.seqused_k, b, key_slot, p.max_keys, fault);
    const int64_t keys = p.seqused_k ? number_at(p.seqused_k, b) : key_slot;
    if (p.leftpad_k) check_used(p.leftpad_k, b, keys, keys, fault);
    if (p.batch_index_k) {
      const int64_t row = number_at(p.batch_index_k, b);
      if (row < 0 || row >= p.k.shape[0]) record(fault, kRow, b, b, row);
    }
  }
}

}  // namespace

Status clear_unowned(const Problem& p, const Launch& launch) {
  const bool writes = p.pass == Pass::forward || !p.accumulate;
  Status status;
  if (writes && (p.packed_q || p.seqused_q)) {
    status = cuda::launch("cuda.clear_rows", clear_rows, grid_of(p.total_rows), launch.stream, p);
  }
  if (status.ok() && writes && p.pass == Pass::backward && (p.packed_k || p.seqused_k)) {
    status = cuda::launch("cuda.clear_keys", clear_keys, grid_of(p.total_keys), launch.stream, p);
  }
  return status;
}

Status check_lengths(const Problem& problem, const Launch& launch) {
  return cuda::launch("cuda.find_faults", find_faults, {.blocks = 1, .threads = kThreads}, launch.stream, problem,
                      launch.fault);
}

}  // namespace tilewise::cuda
