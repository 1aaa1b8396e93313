// Attention as the contract states it: naive loops, row by row and key by key, memory linear in the lengths.
//
// With Real = double and `stored` = f64 this is the oracle. With Real = float and `stored` = the type of q it has the
// rounding of standard attention, which writes scores and probabilities to memory in that type: the yardstick that
// contract C8 measures other kernels by.
#pragma once

#include "core/kernel.h"
#include "cpu/common/each_unit.h"
#include "cpu/reference/row.h"
#include "cpu/simd/portable.h"

namespace tilewise::cpu::reference {

inline constexpr int64_t kRowsOfUnit = 64, kKeysOfUnit = 64;

// A worker's memory.
template <class Real>
struct Room {
  Real *q, *k;            // [D]
  Real *v, *out, *dout;   // [Dv]
  Real* scores;           // [max_keys], or a line of dbias
  Real *keys, *values;    // [kKeysOfUnit][D], [kKeysOfUnit][Dv]
  Real *dkeys, *dvalues;  // the same
  int64_t bytes;

  Room(const Problem& problem, char* base) {
    Carver carver{base};
    for (Real** row : {&q, &k}) *row = carver.take<Real>(problem.head_dim);
    for (Real** row : {&v, &out, &dout}) *row = carver.take<Real>(problem.value_dim);
    scores = carver.take<Real>(greater(problem.max_keys, problem.dbias.shape[3]));
    for (Real** block : {&keys, &dkeys}) *block = carver.take<Real>(kKeysOfUnit * problem.head_dim);
    for (Real** block : {&values, &dvalues}) *block = carver.take<Real>(kKeysOfUnit * problem.value_dim);
    bytes = carver.used;
  }
};

template <class Real>
uint64_t workspace_bytes(const Problem& problem, const Settings& settings) {
  return static_cast<uint64_t>(Room<Real>(problem, nullptr).bytes * settings.workers);
}

// One call: the problem, the arithmetic and the workers.
template <class Real>
class Reference {
 public:
  Reference(const Problem& problem, Type stored, const Settings& settings, const Launch& launch)
      : problem_(problem), stored_(stored), settings_(settings), launch_(launch) {}

  void forward() const {
    each_row_block(
        [this](const Sequence& s, int64_t h, int64_t i, const Room<Real>& room) { forward_row(s, h, i, room); });
  }

  void backward() const {
    if (problem_.dq) {
      each_row_block([this](const Sequence& s, int64_t h, int64_t i, const Room<Real>& room) { dq_of(s, h, i, room); });
    }
    if (problem_.dk || problem_.dv) {
      each_key_block(
          [this](const Sequence& s, int64_t h, KeyRange keys, const Room<Real>& room) { dk_dv_of(s, h, keys, room); });
    }
    if (problem_.dbias) {
      const int64_t* n = problem_.dbias.shape;
      each_unit(n[0] * n[1] * n[2], [this](int64_t unit, const Room<Real>& room) { dbias_line(unit, room); });
    }
    if (problem_.dsink) {
      each_unit(problem_.heads, [this](int64_t h, const Room<Real>& room) { dsink_of(h, room); });
    }
  }

 private:
  // ---- Units of work. Each writes elements of its own, so workers never meet.

  template <class F>
  void each_unit(int64_t units, F f) const {
    const int64_t room_bytes = Room<Real>(problem_, nullptr).bytes;
    cpu::each_unit<portable::Simd>(launch_.parallel, settings_.workers, units, [&](int64_t worker, int64_t unit) {
      f(unit, Room<Real>(problem_, launch_.workspace + worker * room_bytes));
    });
  }

  template <class F>
  void each_row_block(F f) const {
    const int64_t blocks = ceil_div(problem_.max_rows, kRowsOfUnit);
    each_unit(problem_.batch * problem_.heads * blocks, [&](int64_t unit, const Room<Real>& room) {
      const int64_t first = unit % blocks * kRowsOfUnit, h = unit / blocks % problem_.heads;
      const Sequence s = sequence_of(problem_, unit / blocks / problem_.heads);
      for (int64_t i = first; i < std::min(first + kRowsOfUnit, s.rows); ++i) f(s, h, i, room);
    });
  }

  template <class F>
  void each_key_block(F f) const {
    const int64_t blocks = ceil_div(problem_.max_keys, kKeysOfUnit);
    each_unit(problem_.batch * problem_.heads_kv * blocks, [&](int64_t unit, const Room<Real>& room) {
      const int64_t first = unit % blocks * kKeysOfUnit, h = unit / blocks % problem_.heads_kv;
      const Sequence s = sequence_of(problem_, unit / blocks / problem_.heads_kv);
      const KeyRange keys{first, std::min(first + kKeysOfUnit, s.keys)};
      if (!keys.empty()) f(s, h, keys, room);
    });
  }

  // ---- Forward.

  void forward_row(const Sequence& s, int64_t h, int64_t i, const Room<Real>& room) const {
    const Row<Real> row(problem_, s, h, i, stored_);
    read_row(problem_.q, s, i, h, room.q);
    const Real sink = problem_.sink ? read_value<Real>(problem_.sink, problem_.sink.offset(h, 0, 0)) : -kInfinity<Real>;
    Real top = sink;
    each_used_key(row, [&](int64_t j) {
      read_key(problem_.k, s, j, kv_head(h), room.k);
      room.scores[j] = row.score(room.q, room.k, j).value;
      top = std::max(top, room.scores[j]);
    });
    Real sum = sink > -kInfinity<Real> ? std::exp(sink - top) : 0;
    each_used_key(row, [&](int64_t j) { sum += room.scores[j] = std::exp(room.scores[j] - top); });
    Real lse = top + std::log(sum);
    std::fill_n(room.out, problem_.value_dim, Real{0});
    each_used_key(row, [&](int64_t j) {
      read_key(problem_.v, s, j, kv_head(h), room.v);
      add_scaled(row.keep(room.scores[j] / sum * row.dropout_factor(j)), room.v, problem_.value_dim, room.out);
    });
    if (problem_.prior_lse) merge_prior(s, h, i, lse, room);
    write_values(problem_.out, row_offset(problem_.out, s, i, h), problem_.value_dim, room.out);
    if (problem_.lse) write_values(problem_.lse, lse_offset(problem_.lse, s, i, h), 1, &lse);
  }

  // Two results over disjoint keys, weighted by their sums; an empty side leaves the other as it is.
  void merge_prior(const Sequence& s, int64_t h, int64_t i, Real& lse, const Room<Real>& room) const {
    const Real prior = read_value<Real>(problem_.prior_lse, lse_offset(problem_.prior_lse, s, i, h));
    if (prior == -kInfinity<Real>) return;
    read_row(problem_.prior_out, s, i, h, room.v);
    const Real top = std::max(lse, prior), merged = top + std::log(std::exp(lse - top) + std::exp(prior - top));
    const Real weight = std::exp(lse - merged), prior_weight = std::exp(prior - merged);
    const bool empty = lse == -kInfinity<Real>;
    for (int64_t d = 0; d < problem_.value_dim; ++d) {
      room.out[d] = empty ? room.v[d] : weight * room.out[d] + prior_weight * room.v[d];
    }
    lse = empty ? prior : merged;
  }

  // ---- Backward: P = exp(S - LSE), dS = P (Z dP - delta + dLSE), with dP = dO V^T, delta = rowsum(dO O), Z dropout.

  // What a row brings to all its keys; its q and dout lie in the room.
  struct RowGradient {
    Row<Real> row;
    Real lse, shift;  // shift = dLSE - delta

    bool live() const { return lse != -kInfinity<Real>; }
  };

  struct PairGradient {
    Real p;    // with dropout
    Real ds;   // of the final score
    Real dqk;  // of q.k
  };

  RowGradient row_gradient(const Sequence& s, int64_t h, int64_t i, const Room<Real>& room) const {
    RowGradient g{Row<Real>(problem_, s, h, i, stored_), 0, 0};
    g.lse = read_value<Real>(problem_.lse, lse_offset(problem_.lse, s, i, h));
    if (!g.live()) return g;
    read_row(problem_.q, s, i, h, room.q);
    read_row(problem_.out, s, i, h, room.out);
    read_row(problem_.dout, s, i, h, room.dout);
    if (problem_.dlse) g.shift = read_value<Real>(problem_.dlse, lse_offset(problem_.dlse, s, i, h));
    g.shift -= dot(room.dout, room.out, problem_.value_dim);
    return g;
  }

  PairGradient pair_gradient(const RowGradient& g, const Real* k, const Real* v, int64_t j,
                             const Room<Real>& room) const {
    const Score<Real> s = g.row.score(room.q, k, j);
    const Real p = g.row.keep(std::exp(s.value - g.lse)), z = g.row.dropout_factor(j);
    const Real dp = g.row.keep(dot(room.dout, v, problem_.value_dim));
    const Real ds = g.row.keep(p * (z * dp + g.shift));
    return {g.row.keep(p * z), ds, ds * s.slope * static_cast<Real>(problem_.softmax_scale)};
  }

  void dq_of(const Sequence& s, int64_t h, int64_t i, const Room<Real>& room) const {
    const RowGradient g = row_gradient(s, h, i, room);
    Real* dq = room.dkeys;
    start_gradient(problem_.dq, row_offset(problem_.dq, s, i, h), problem_.head_dim, dq);
    if (g.live()) {
      each_used_key(g.row, [&](int64_t j) {
        read_key(problem_.k, s, j, kv_head(h), room.k);
        read_key(problem_.v, s, j, kv_head(h), room.v);
        add_scaled(pair_gradient(g, room.k, room.v, j, room).dqk, room.k, problem_.head_dim, dq);
      });
    }
    write_values(problem_.dq, row_offset(problem_.dq, s, i, h), problem_.head_dim, dq);
  }

  void dk_dv_of(const Sequence& s, int64_t kv, KeyRange keys, const Room<Real>& room) const {
    const int64_t d = problem_.head_dim, dv = problem_.value_dim, group = problem_.group();
    const auto block = [&](int64_t j, Real* first, int64_t row) { return first + (j - keys.lo) * row; };
    for (int64_t j = keys.lo; j < keys.hi; ++j) {
      read_key(problem_.k, s, j, kv, block(j, room.keys, d));
      read_key(problem_.v, s, j, kv, block(j, room.values, dv));
      start_gradient(problem_.dk, key_offset(problem_.dk, s, j, kv), d, block(j, room.dkeys, d));
      start_gradient(problem_.dv, key_offset(problem_.dv, s, j, kv), dv, block(j, room.dvalues, dv));
    }
    for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      for (int64_t i = 0; i < s.rows; ++i) {
        RowGradient g = row_gradient(s, h, i, room);
        if (!g.live()) continue;
        g.row.live = {std::max(g.row.live.lo, keys.lo), std::min(g.row.live.hi, keys.hi)};
        each_used_key(g.row, [&](int64_t j) {
          const PairGradient pair = pair_gradient(g, block(j, room.keys, d), block(j, room.values, dv), j, room);
          add_scaled(pair.dqk, room.q, d, block(j, room.dkeys, d));
          add_scaled(pair.p, room.dout, dv, block(j, room.dvalues, dv));
        });
      }
    }
    for (int64_t j = keys.lo; j < keys.hi; ++j) {
      write_values(problem_.dk, key_offset(problem_.dk, s, j, kv), d, block(j, room.dkeys, d));
      write_values(problem_.dv, key_offset(problem_.dv, s, j, kv), dv, block(j, room.dvalues, dv));
    }
  }

  // One line of dbias (sequence, head, row, all keys): the sum over everything that reads this line of the bias.
  void dbias_line(int64_t line, const Room<Real>& room) const {
    const Tensor& t = problem_.dbias;
    const int64_t i0 = line % t.shape[2], h0 = line / t.shape[2] % t.shape[1], b0 = line / t.shape[2] / t.shape[1];
    Real* sums = room.scores;
    std::fill_n(sums, t.shape[3], Real{0});
    each_of(t.shape[0], b0, problem_.batch, [&](int64_t b) {
      const Sequence s = sequence_of(problem_, b);
      each_of(t.shape[1], h0, problem_.heads, [&](int64_t h) {
        each_of(t.shape[2], i0, s.rows, [&](int64_t i) { add_row_to_dbias(s, h, i, sums, room); });
      });
    });
    for (int64_t j = 0; j < t.shape[3]; ++j) write_values(t, t.offset(b0, h0, i0, j), 1, sums + j);
  }

  void add_row_to_dbias(const Sequence& s, int64_t h, int64_t i, Real* sums, const Room<Real>& room) const {
    const RowGradient g = row_gradient(s, h, i, room);
    if (!g.live()) return;
    each_used_key(g.row, [&](int64_t j) {
      read_key(problem_.k, s, j, kv_head(h), room.k);
      read_key(problem_.v, s, j, kv_head(h), room.v);
      sums[problem_.dbias.shape[3] == 1 ? 0 : j] += pair_gradient(g, room.k, room.v, j, room).ds;
    });
  }

  // The sink is a key whose score is the logit and whose value is 0.
  void dsink_of(int64_t h, const Room<Real>& room) const {
    const Real sink = read_value<Real>(problem_.sink, problem_.sink.offset(h, 0, 0));
    Real sum = 0;
    for (int64_t b = 0; b < problem_.batch; ++b) {
      const Sequence s = sequence_of(problem_, b);
      for (int64_t i = 0; i < s.rows; ++i) {
        const RowGradient g = row_gradient(s, h, i, room);
        if (g.live()) sum += std::exp(sink - g.lse) * g.shift;
      }
    }
    write_values(problem_.dsink, problem_.dsink.offset(h, 0, 0), 1, &sum);
  }

  // ---- Small steps.

  int64_t kv_head(int64_t h) const { return h / problem_.group(); }

  static void read_row(const Tensor& t, const Sequence& s, int64_t i, int64_t h, Real* to) {
    read_values(t, row_offset(t, s, i, h), t.shape[3], to);
  }

  static void read_key(const Tensor& t, const Sequence& s, int64_t j, int64_t h, Real* to) {
    read_values(t, key_offset(t, s, j, h), t.shape[3], to);
  }

  // An absent gradient is computed but not written.
  void start_gradient(const Tensor& t, int64_t offset, int64_t count, Real* gradient) const {
    std::fill_n(gradient, count, Real{0});
    if (problem_.accumulate) read_values(t, offset, count, gradient);
  }

  template <class F>
  static void each_used_key(const Row<Real>& row, F f) {
    for (int64_t j = row.live.lo; j < row.live.hi; ++j)
      if (row.uses(j)) f(j);
  }

  // f(at), or f of all 0 <= i < count where an axis of extent 1 repeats.
  template <class F>
  static void each_of(int64_t extent, int64_t at, int64_t count, F f) {
    if (extent == 1) {
      for (int64_t i = 0; i < count; ++i) f(i);
    } else if (at < count) {
      f(at);
    }
  }

  const Problem& problem_;
  const Type stored_;
  const Settings& settings_;
  const Launch& launch_;
};

}  // namespace tilewise::cpu::reference
