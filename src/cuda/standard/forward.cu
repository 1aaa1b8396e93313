// Standard attention, forward (Algorithm 0 of FlashAttention's paper): S and P lie in device memory, whole.
#include "cuda/common/joined_lse.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/kernels.h"
#include "cuda/standard/blaslt.h"
#include "cuda/standard/products.cuh"
#include "cuda/standard/softmax.cuh"

namespace tilewise::cuda {
namespace standard {
namespace {

constexpr int kThreads = 256;

// LSE of this call's keys and of those before: after all that reads the prior, which may be the same memory.
__global__ __launch_bounds__(kThreads) void merge_lse(const __grid_constant__ Problem p,
                                                      const __grid_constant__ Squares squares) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const auto [b, h, i] = row_of_head(p, index);
  if (h >= p.heads) return;
  const Sequence s = find_sequence(p, b);
  if (i >= s.rows) return;
  const float prior = read_element(p.prior_lse, lse_offset(p.prior_lse, s, i, h));
  const float own = squares.lse[h * squares.total_rows + token_of(p, s, i)];
  write_element(p.lse, lse_offset(p.lse, s, i, h), join(own, prior).lse);
}

bool merges_lse(const Problem& p) { return p.lse && p.prior_lse; }

Status load_forward(const Problem& p, const Settings&) {
  prepare_blaslt(p.device_index);
  return with_element(p.type, [&](auto element) {
    using E = decltype(element);
    Status status = load_hulls();
    if (status.ok()) status = load_product<PairProduct<E>>("cuda.standard.scores");
    if (status.ok()) status = load("cuda.standard.softmax", softmax_for<E>(p), 0);
    if (status.ok()) status = load_product<RowProduct<E>>("cuda.standard.out");
    if (status.ok() && merges_lse(p)) status = load("cuda.standard.merge_lse", merge_lse, 0);
    return status;
  });
}

template <class E>
Status launch_steps(const Problem& p, const Squares& squares, void* stream) {
  const Grid rows{.blocks = rows_of_heads(p), .threads = threads_of_row(p)};
  Status status = find_hulls(p, squares, stream);
  if (status.ok()) {  // S = scale Q K^T
    status = launch_product<PairProduct<E>>("cuda.standard.scores", p, squares, Result::scores, stream);
  }
  if (status.ok()) {  // P = softmax(S)
    status = launch("cuda.standard.softmax", softmax_for<E>(p), rows, stream, p, squares);
  }
  if (status.ok()) {  // O = P V
    status = launch_product<RowProduct<E>>("cuda.standard.out", p, squares, Result::out, stream);
  }
  if (status.ok() && merges_lse(p)) {
    const Grid all{.blocks = ceil_div(rows_of_heads(p), kThreads), .threads = kThreads};
    status = launch("cuda.standard.merge_lse", merge_lse, all, stream, p, squares);
  }
  return status;
}

Status launch_forward(const Problem& p, const Settings&, const Launch& launch) {
  const Squares squares = lay_out(p, launch.workspace);
  return with_element(p.type, [&](auto element) { return launch_steps<decltype(element)>(p, squares, launch.stream); });
}

}  // namespace
}  // namespace standard

const Kernel standard_forward = {.name = "cuda.standard.forward",
                                 .pass = Pass::forward,
                                 .rank = Rank::rung,
                                 .algorithm = Algorithm::standard,
                                 .isa = Isa::cuda,
                                 .device_type = TW_CUDA,
                                 .runs_on = needs_sm80,
                                 .refuse = standard::refuse,
                                 .size = standard::size,
                                 .load = standard::load_forward,
                                 .launch = standard::launch_forward};

}  // namespace tilewise::cuda
