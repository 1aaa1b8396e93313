// Standard attention, backward: what automatic differentiation of the materialised forward does, with P computed again
// from LSE.
#include "cuda/kernels.h"
#include "cuda/standard/blaslt.h"
#include "cuda/standard/gradients.cuh"
#include "cuda/standard/products.cuh"
#include "cuda/standard/softmax.cuh"

namespace tilewise::cuda {
namespace standard {
namespace {

Status load_backward(const Problem& p, const Settings&) {
  prepare_blaslt(p.device_index);
  return with_element(p.type, [&](auto element) {
    using E = decltype(element);
    Status status = load_hulls();
    if (status.ok()) status = load("cuda.standard.rows", prepare_rows, 0);
    if (status.ok()) status = load_product<PairProduct<E>>("cuda.standard.scores");
    if (status.ok()) status = load("cuda.standard.score_gradients", score_gradients_for<E>(p), 0);
    if (status.ok() && (p.dk || p.dv)) status = load_product<KeyProduct<E>>("cuda.standard.dkeys");
    if (status.ok() && p.dq) status = load_product<RowProduct<E>>("cuda.standard.dq");
    if (status.ok() && p.dbias) status = load("cuda.standard.dbias", sum_dbias<E>, 0);
    if (status.ok() && p.dsink) status = load("cuda.standard.dsink", find_dsink, 0);
    return status;
  });
}

// The steps of one call, in order. The first that fails is the last.
template <class E>
class Backward {
 public:
  Backward(const Problem& p, const Launch& launch)
      : p_(p), squares_(lay_out(p, launch.workspace)), stream_(launch.stream) {}

  Status run() {
    status_ = find_hulls(p_, squares_, stream_);
    step("cuda.standard.rows", prepare_rows, grid_of_rows(p_), p_, squares_);
    product<PairProduct<E>>("cuda.standard.scores", Result::scores);  // S = scale Q K^T
    product<PairProduct<E>>("cuda.standard.dprobs", Result::dprobs);  // dP = dO V^T
    gradients_of_scores();  // P = exp(S - LSE);  dS = P (Z dP - delta + dLSE),  P = P Z
    if (p_.dv) product<KeyProduct<E>>("cuda.standard.dv", Result::dv);  // dV = P^T dO
    if (p_.dq) product<RowProduct<E>>("cuda.standard.dq", Result::dq);  // dQ = scale dS K
    if (p_.dk) product<KeyProduct<E>>("cuda.standard.dk", Result::dk);  // dK = scale dS^T Q
    if (p_.dsink) sinks();                                              // dsink = sum of exp(sink - LSE) (dLSE - delta)
    return status_;
  }

 private:
  void sinks() { step("cuda.standard.dsink", find_dsink, {.blocks = p_.heads, .threads = kSinkThreads}, p_, squares_); }

  // dbias is the sum of dS as it is before softcap, which is then computed once more.
  void gradients_of_scores() {
    const auto kernel = score_gradients_for<E>(p_);
    const Grid grid{.blocks = rows_of_heads(p_), .threads = threads_of_row(p_)};
    const bool twice = p_.dbias && p_.softcap > 0;
    if (twice) step("cuda.standard.score_gradients", kernel, grid, p_, squares_, false);
    if (!twice) step("cuda.standard.score_gradients", kernel, grid, p_, squares_, true);
    if (p_.dbias) step("cuda.standard.dbias", sum_dbias<E>, grid_of_dbias(p_), p_, squares_);
    if (twice) step("cuda.standard.score_gradients", kernel, grid, p_, squares_, true);
  }

  template <class Product>
  void product(const char* name, Result result) {
    if (status_.ok()) status_ = launch_product<Product>(name, p_, squares_, result, stream_);
  }
  template <class... Parameters>
  void step(const char* name, void (*kernel)(Parameters...), Grid grid,
            const std::type_identity_t<Parameters>&... parameters) {
    if (status_.ok()) status_ = launch(name, kernel, grid, stream_, parameters...);
  }

  const Problem& p_;
  const Squares squares_;
  void* const stream_;
  Status status_;
};

Status launch_backward(const Problem& p, const Settings&, const Launch& launch) {
  return with_element(p.type, [&](auto element) { return Backward<decltype(element)>(p, launch).run(); });
}

}  // namespace
}  // namespace standard

const Kernel standard_backward = {.name = "cuda.standard.backward",
                                  .pass = Pass::backward,
                                  .rank = Rank::rung,
                                  .algorithm = Algorithm::standard,
                                  .isa = Isa::cuda,
                                  .device_type = TW_CUDA,
                                  .runs_on = needs_sm80,
                                  .refuse = standard::refuse,
                                  .size = standard::size,
                                  .load = standard::load_backward,
                                  .launch = standard::launch_backward};

}  // namespace tilewise::cuda
