#include "core/options.h"
#include "cuda/standard/blaslt.h"
#include "cuda/standard/library_products.h"

namespace tilewise::cuda::standard {
namespace {

constexpr int64_t kMostLaunches = 32;  // of one product; beyond, one launch of our own is better
constexpr int64_t kMostBatch = 65535;  // of a launch
constexpr int64_t kAlignment = 16;     // bytes

// Matrices of all sequences and heads.
struct Matrices {
  const char* data;
  Type type;
  bool along;                    // lines run along the depth
  int64_t line, sequence, head;  // strides, elements
  int64_t heads_each = 1;        // so many query heads share one

  const char* at(int64_t b, int64_t h) const { return data + (b * sequence + h / heads_each * head) * size_of(type); }
  bool is_aligned() const {
    const int64_t elements = kAlignment / size_of(type);
    return reinterpret_cast<uint64_t>(data) % kAlignment == 0 && line % elements == 0 && sequence % elements == 0 &&
           head % elements == 0;
  }
};

struct Product {
  int64_t rows, cols, depth;
  Matrices a, b, c;
  float factor;
};

// Every row sees a key, every key is seen, and nothing but the sizes says so. A library may multiply otherwise in
// another batch.
bool is_regular(const Problem& p) {
  if (p.batch_invariant || has_lengths(p) || has_key_intervals(p) || p.bias || p.mask) return false;
  if (p.batch == 0 || p.max_rows == 0 || p.max_keys == 0) return false;
  if (!p.causal) return true;
  return p.top_left ? p.max_rows >= p.max_keys : p.max_rows <= p.max_keys;
}

Matrices of_tensor(const Tensor& t, bool along, int64_t heads_each) {
  return {t.data, t.type, along, t.stride[1], t.stride[0], t.stride[2], heads_each};
}

Matrices of_square(const Problem& p, const Squares& q, const char* square, Type type, bool along) {
  return {square, type, along, q.row, p.max_rows * q.row, q.total_rows * q.row};
}

Product product_of(const Problem& p, const Squares& q, Result result) {
  const int64_t n = p.max_rows, m = p.max_keys, dims = p.head_dim, value_dims = p.value_dim;
  const float scale = p.softmax_scale;
  const auto of_rows = [&](const Tensor& t, bool along) { return of_tensor(t, along, 1); };
  const auto of_keys = [&](const Tensor& t, bool along) { return of_tensor(t, along, p.group()); };
  const auto scores = [&](const char* square) { return of_square(p, q, square, score_type(p), true); };
  const auto probs = [&](const char* square, bool along) { return of_square(p, q, square, p.type, along); };
  switch (result) {
    case Result::scores:
      return {n, m, dims, of_rows(p.q, true), of_keys(p.k, true), scores(q.scores), scale};
    case Result::dprobs:
      return {n, m, value_dims, of_rows(p.dout, true), of_keys(p.v, true), scores(q.dprobs), 1};
    case Result::out:
      return {n, value_dims, m, probs(q.probs, true), of_keys(p.v, false), of_rows(p.out, true), 1};
    case Result::dq:
      return {n, dims, m, probs(q.dscores, true), of_keys(p.k, false), of_rows(p.dq, true), scale};
    case Result::dk:
      return {m, dims, n, probs(q.dscores, false), of_rows(p.q, false), of_keys(p.dk, true), scale};
    case Result::dv:
      break;
  }
  return {m, value_dims, n, probs(q.probs, false), of_rows(p.dout, false), of_keys(p.dv, true), 1};
}

bool is_served(const Problem& p, Result result, const Product& product) {
  const bool of_keys = result == Result::dk || result == Result::dv;
  if (of_keys && p.group() > 1) return false;  // a sum over heads
  if (result == Result::out && p.prior_out) return false;
  if (p.accumulate && (of_keys || result == Result::dq)) return false;
  const auto& [rows, cols, depth, a, b, c, factor] = product;
  if (c.type != p.type && c.type != Type::f32) return false;
  const bool lines_apart = a.line >= (a.along ? depth : rows) && b.line >= (b.along ? depth : cols) && c.line >= cols;
  return lines_apart && a.is_aligned() && b.is_aligned() && c.is_aligned();
}

}  // namespace

bool multiply_by_library(const Problem& p, const Squares& squares, Result result, void* stream) {
  if (!is_regular(p)) return false;
  const Product product = product_of(p, squares, result);
  if (!is_served(p, result, product)) return false;
  // A launch for each sequence with a batch of heads, or the other way round: heads that share keys have no one stride.
  const bool by_sequence = p.group() == 1 && p.batch <= p.heads;
  const int64_t launches = by_sequence ? p.batch : p.heads, batch = by_sequence ? p.heads : p.batch;
  if (launches > kMostLaunches || batch > kMostBatch) return false;
  for (int64_t n = 0; n < launches; ++n) {
    const auto matrix = [&](const Matrices& m) {
      const char* data = by_sequence ? m.at(n, 0) : m.at(0, n);
      return BatchedMatrix{data, m.type, m.along, m.line, by_sequence ? m.head : m.sequence};
    };
    const BatchedProduct part{product.rows,      product.cols,      product.depth,     batch,
                              matrix(product.a), matrix(product.b), matrix(product.c), product.factor};
    if (!multiply_by_blaslt(p.device_index, part, stream)) return false;
  }
  return true;
}

}  // namespace tilewise::cuda::standard
