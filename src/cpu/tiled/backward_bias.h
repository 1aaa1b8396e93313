// The gradient of the bias: dS' of every pair that read an element, summed in one fixed order. One unit owns a block of
// dbias and computes the pairs again, so nothing of the size of all scores is kept.
#pragma once

#include "cpu/tiled/backward_pairs.h"

namespace tilewise::cpu {

// Blocks of dbias; an axis of extent 1, along which the bias repeats, is one block.
struct BiasBlocks {
  int64_t rows, keys;              // of a block
  int64_t row_blocks, key_blocks;  // of a head

  template <class Simd>
  static BiasBlocks of(const Problem& problem, int64_t most_keys) {
    const int64_t* shape = problem.dbias.shape;
    return {kBlockRows<Simd>, most_keys, ceil_div(shape[2], kBlockRows<Simd>), ceil_div(shape[3], most_keys)};
  }
  [[gnu::always_inline]] int64_t units(const Problem& problem) const {
    return problem.dbias.shape[0] * problem.dbias.shape[1] * row_blocks * key_blocks;
  }
};

template <class Simd>
class BiasWorker {
  using S = Simd;
  static constexpr int kLanes = S::kLanes;
  static constexpr int64_t kPairRow = PairBlock<S>::kPairRow;

 public:
  BiasWorker(const Problem& problem, int64_t most_keys, Carver& carve)
      : problem_(problem),
        blocks_(BiasBlocks::of<S>(problem, most_keys)),
        queries_(problem, true, carve),
        keys_(problem, most_keys, carve),
        pairs_(problem, queries_, keys_, ScoreGradient::final, carve) {
    sums_t_ = carve.take<float>(most_keys * kPairRow);
    line_ = carve.take<float>(round_up(most_keys, kLanes));
  }

  void run(int64_t unit) {
    const int64_t* shape = problem_.dbias.shape;
    const int64_t first_key = unit % blocks_.key_blocks * blocks_.keys;
    unit /= blocks_.key_blocks;
    const int64_t first_row = unit % blocks_.row_blocks * blocks_.rows;
    unit /= blocks_.row_blocks;
    const int64_t h = unit % shape[1], b = unit / shape[1];
    zero<S>(sums_t_, blocks_.keys * kPairRow);
    each_of(shape[0], b, 1, problem_.batch, [&](int64_t sequence) {
      const Sequence s = sequence_of(problem_, sequence);
      each_of(shape[1], h, 1, problem_.heads, [&](int64_t head) {
        queries_.set_sequence(s, head, 1);
        each_of(shape[3], first_key, blocks_.keys, s.keys, [&](int64_t key) {
          keys_.start(s, head / problem_.group(), {key, lesser(key + blocks_.keys, s.keys)});
          each_of(shape[2], first_row, blocks_.rows, s.rows,
                  [&](int64_t row) { add_pairs(row, lesser(blocks_.rows, s.rows - row)); });
        });
      });
    });
    store(b, h, first_row, first_key);
  }

 private:
  // f(at) if it lies below `end`; along an axis that repeats, f of every step below `end`.
  template <class F>
  static void each_of(int64_t extent, int64_t at, int64_t step, int64_t end, F f) {
    if (extent > 1) {
      if (at < end) f(at);
    } else {
      for (int64_t i = 0; i < end; i += step) f(i);
    }
  }

  // Rows [first, first + count) of the head against the chunk of keys.
  void add_pairs(int64_t first, int64_t count) {
    const KeyRange any = queries_.find_live_keys(first, count);
    const KeyRange live{greater(any.lo, keys_.keys.lo), lesser(any.hi, keys_.keys.hi)};
    if (live.empty()) return;
    queries_.load();
    keys_.load(live);
    for (int64_t key = live.lo; key < live.hi; key += kBlockKeys) {
      pairs_.set_keys(key, lesser(kBlockKeys, live.hi - key));
      for (int64_t panel = 0; panel < queries_.panels; ++panel) pairs_.compute(panel, true);
      for (int64_t j = 0; j < pairs_.count; ++j) {
        float* sums = sums_t_ + (key - keys_.keys.lo + j) * kPairRow;
        const float* dscores = pairs_.dscores_t + j * kPairRow;
        for (int64_t r = 0; r < queries_.panels * S::kTileCols; r += kLanes)
          S::store(sums + r, S::add(S::load(sums + r), S::load(dscores + r)));
      }
    }
  }

  // A repeated axis is summed up last.
  void store(int64_t b, int64_t h, int64_t first_row, int64_t first_key) {
    const Tensor& t = problem_.dbias;
    const bool one_row = t.shape[2] == 1, one_key = t.shape[3] == 1;
    const int64_t rows = lesser(blocks_.rows, t.shape[2] - first_row),
                  keys = lesser(blocks_.keys, t.shape[3] - first_key);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t key = 0; key < keys; ++key)
        line_[key] = sum_of(one_row ? 0 : r, one_row ? blocks_.rows : r + 1, one_key ? 0 : key,
                            one_key ? blocks_.keys : key + 1);
      store_line(t, t.offset(b, h, first_row + r, first_key), keys);
    }
  }

  float sum_of(int64_t first_row, int64_t end_row, int64_t first_key, int64_t end_key) const {
    double sum = 0;
    for (int64_t key = first_key; key < end_key; ++key)
      for (int64_t r = first_row; r < end_row; ++r) sum += sums_t_[key * kPairRow + r];
    return static_cast<float>(sum);
  }

  void store_line(const Tensor& t, int64_t offset, int64_t count) {
    with_element(t.type, [&](auto element) {
      using Element = decltype(element);
      if (t.stride[3] == 1) return write_row<S>(line_, count, 1, element_at<Element>(t, offset));
      for (int64_t i = 0; i < count; ++i)
        S::store_first(element_at<Element>(t, offset + i * t.stride[3]), S::set(line_[i]), 1);
    });
  }

  const Problem& problem_;
  const BiasBlocks blocks_;
  QueryBlock<S> queries_;
  KeyChunk<S> keys_;
  PairBlock<S> pairs_;
  float* sums_t_;  // [chunk_keys][kPairRow]
  float* line_;    // [chunk_keys]
};

}  // namespace tilewise::cpu
