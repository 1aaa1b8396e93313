#include "cases/case_data.h"

#include <algorithm>
#include <numeric>

#include "cases/fills.h"
#include "cases/random.h"

namespace tilewise::cases {
namespace {

constexpr uint64_t kDropoutSeed = 0x1234567890ABCDEF, kDropoutOffset = 3;

std::vector<int64_t> offsets_of(const std::vector<int64_t>& lengths) {
  std::vector<int64_t> offsets(lengths.size() + 1);
  std::partial_sum(lengths.begin(), lengths.end(), offsets.begin() + 1);
  return offsets;
}

Stored numbers(const std::vector<int64_t>& values) {
  if (values.empty()) return {};
  Stored stored(Type::i32, {static_cast<int64_t>(values.size()), 1, 1, 1});
  for (size_t i = 0; i < values.size(); ++i) stored.set(static_cast<double>(values[i]), static_cast<int64_t>(i));
  return stored;
}

int64_t floor_to(int64_t x, int64_t step) { return (x >= 0 ? x / step : -((-x + step - 1) / step)) * step; }

// The index along an axis of a broadcast tensor.
int64_t at_axis(const Stored& t, int axis, int64_t index) { return t.shape()[axis] == 1 ? 0 : index; }

constexpr NamedOutput kForward[] = {{"out", &Outputs::out}, {"lse", &Outputs::lse}};
constexpr NamedOutput kBackward[] = {{"dq", &Outputs::dq},
                                     {"dk", &Outputs::dk},
                                     {"dv", &Outputs::dv},
                                     {"dbias", &Outputs::dbias},
                                     {"dsink", &Outputs::dsink}};

}  // namespace

std::span<const NamedOutput> outputs_of(Pass pass) {
  return pass == Pass::forward ? std::span<const NamedOutput>(kForward) : std::span<const NamedOutput>(kBackward);
}

CaseData::CaseData(const Case& description) : case_(description) {
  Random random(case_.seed * 0x9E3779B97F4A7C15);
  make_lengths();
  make_positions(random);
  make_intervals(random);
  find_ranges();
  find_seen_keys();
  make_pairs(random);
  make_heads(random);
  make_rows(random);
  make_keys(random);
}

// ---- Lengths, positions, intervals.

void CaseData::make_lengths() {
  first_q_ = offsets_of(case_.packed_q);
  first_k_ = offsets_of(case_.packed_k);
  if (!case_.packed_q.empty()) cu_seqlens_q = numbers(first_q_);
  if (!case_.packed_k.empty()) cu_seqlens_k = numbers(first_k_);
  used_q = numbers(case_.used_q);
  used_k = numbers(case_.used_k);
  left_pad = numbers(case_.left_pad);
  batch_index = numbers(case_.batch_index);
  k_slots_ = case_.batch;
  if (!case_.packed_k.empty()) k_slots_ = 1;
  for (const int64_t slot : case_.batch_index) k_slots_ = std::max(k_slots_, slot + 1);
}

int64_t CaseData::k_slot(int64_t b) const {
  if (!case_.packed_k.empty()) return 0;
  return case_.batch_index.empty() ? b : case_.batch_index[b];
}

// A chunk of a longer sequence: keys ascend with gaps and repeats, rows stand anywhere among them.
void CaseData::make_positions(Random& random) {
  const int64_t first = 37;
  if (!case_.q_positions.empty()) {
    const int64_t slots = !case_.packed_q.empty() || case_.q_positions[0] == '1' ? 1 : case_.batch;
    q_positions = Stored(Type::i32, {slots, rows_shape(1)[1], 1, 1});
    q_positions.each([&](int64_t slot, int64_t row, int64_t, int64_t) {
      q_positions.set(static_cast<double>(first + random.between(-2, case_.seqlen_k + 2)), slot, row);
    });
  }
  if (!case_.k_positions.empty()) {
    const int64_t slots = case_.k_positions[0] == '1' ? 1 : k_slots_;
    k_positions = Stored(Type::i32, {slots, keys_shape(1)[1], 1, 1});
    for (int64_t slot = 0; slot < slots; ++slot) {
      int64_t position = first;
      for (int64_t j = 0; j < k_positions.shape()[1]; ++j) {
        const bool starts = std::find(first_k_.begin(), first_k_.end(), j) != first_k_.end();
        position = starts ? first : position + random.pick({0, 1, 1, 1, 1, 3});
        k_positions.set(static_cast<double>(position), slot, j);
      }
    }
  }
}

void CaseData::make_intervals(Random& random) {
  const auto make = [&](const Axes& axes, bool ends) {
    if (axes.empty()) return Stored();
    const Shape whole = lse_shape();
    Stored t(Type::i32, {axes[0] == '1' ? 1 : whole[0], axes[1] == '1' ? 1 : whole[1], whole[2], 1});
    t.each([&](int64_t slot, int64_t h, int64_t row, int64_t) {
      const int64_t third = case_.seqlen_k / 3;
      const int64_t x = random.chance(0.1) ? random.between(-5, case_.seqlen_k + 5)
                                           : random.between(0, third) + (ends ? case_.seqlen_k - third : 0);
      t.set(static_cast<double>(x), slot, h, row);
    });
    return t;
  };
  key_begin = make(case_.key_begin, false);
  key_end = make(case_.key_end, true);
}

bool CaseData::in_range(int64_t b, int64_t h, int64_t i, int64_t j) const {
  const int64_t sq = case_.rows(b), sk = case_.keys(b);
  if (i >= sq || j >= sk) return false;
  if (!case_.left_pad.empty() && j < case_.left_pad[b]) return false;
  int64_t p = case_.top_left ? i : i + sk - sq, x = j;
  if (q_positions) p = static_cast<int64_t>(q_positions.at(at_axis(q_positions, 0, b), q_row(b, i)));
  if (k_positions) x = static_cast<int64_t>(k_positions.at(at_axis(k_positions, 0, k_slot(b)), k_row(b, j)));
  if (case_.causal && x > p) return false;
  if (case_.window_left != kUnbounded && x < p - case_.window_left) return false;
  if (case_.window_right != kUnbounded && x > p + case_.window_right) return false;
  if (case_.chunk > 0 && x < floor_to(p, case_.chunk)) return false;
  const auto bound = [&](const Stored& t) {
    return static_cast<int64_t>(t.at(at_axis(t, 0, q_slot(b)), at_axis(t, 1, h), q_row(b, i)));
  };
  return (!key_begin || j >= bound(key_begin)) && (!key_end || j < bound(key_end));
}

void CaseData::find_ranges() {
  ranges_.assign(static_cast<size_t>(case_.batch * case_.heads * case_.seqlen_q), {});
  const bool by_head = key_begin || key_end;
  for (int64_t b = 0; b < case_.batch; ++b) {
    for (int64_t h = 0; h < case_.heads; ++h) {
      for (int64_t i = 0; i < case_.rows(b); ++i) {
        KeyRange& found = ranges_[(b * case_.heads + h) * case_.seqlen_q + i];
        if (h > 0 && !by_head) {
          found = range(b, 0, i);
          continue;
        }
        for (int64_t j = 0; j < case_.keys(b); ++j) {
          if (!in_range(b, h, i, j)) continue;
          found = {found.empty() ? j : found.lo, j + 1};
        }
      }
    }
  }
}

bool CaseData::row_counts(int64_t b, int64_t h, int64_t i) const {
  return i < case_.rows(b) && (case_.sink || !range(b, h, i).empty());
}

void CaseData::find_seen_keys() {
  const int64_t group = case_.heads / case_.heads_kv;
  for (int64_t b = 0; b < case_.batch; ++b) {
    for (int64_t kv = 0; kv < case_.heads_kv; ++kv) {
      RowsRange rows;
      for (int64_t h = kv * group; h < (kv + 1) * group; ++h)
        for (int64_t i = 0; i < case_.rows(b); ++i) rows.add(range(b, h, i));
      seen_.push_back(rows.any);
    }
  }
}

bool CaseData::key_counts(int64_t b, int64_t kv, int64_t j) const {
  const KeyRange seen = seen_[b * case_.heads_kv + kv];
  return j >= seen.lo && j < seen.hi;
}

// ---- Shapes.

Layout CaseData::layout_of(int tensor) const {
  const int first = static_cast<int>(case_.layout);
  return case_.mixed_layouts ? static_cast<Layout>((first + tensor) % 4) : case_.layout;
}

Shape CaseData::rows_shape(int64_t dim) const {
  if (case_.packed_q.empty()) return {case_.batch, case_.seqlen_q, case_.heads, dim};
  return {1, first_q_.back() + case_.spare, case_.heads, dim};
}

Shape CaseData::keys_shape(int64_t dim) const {
  if (case_.packed_k.empty()) return {k_slots_, case_.seqlen_k, case_.heads_kv, dim};
  return {1, first_k_.back() + case_.spare, case_.heads_kv, dim};
}

Shape CaseData::lse_shape() const {
  const Shape rows = rows_shape(1);
  return {rows[0], rows[2], rows[1], 1};
}

Shape CaseData::pairs_shape(const Axes& axes, int64_t columns) const {
  Shape shape = {case_.batch, case_.heads, case_.seqlen_q, columns};
  for (int axis = 0; axis < 4; ++axis)
    if (axes[axis] == '1' || axes[axis] == '0') shape[axis] = 1;
  return shape;
}

// ---- Values.

void CaseData::make_pairs(Random& random) {
  const auto make = [&](const Axes& axes, Type type, int64_t tail, auto value) {
    if (axes.empty()) return Stored();
    Stored t(type, pairs_shape(axes, tail > 0 ? tail : case_.seqlen_k), layout_of(5));
    std::vector<char> counts(static_cast<size_t>(t.count()));
    const Shape n = t.shape();
    for (int64_t b = 0; b < case_.batch; ++b) {
      const int64_t first = tail > 0 ? case_.keys(b) - tail : 0;
      for (int64_t h = 0; h < case_.heads; ++h)
        for (int64_t i = 0; i < case_.rows(b); ++i)
          for (int64_t j = std::max(range(b, h, i).lo, first); j < range(b, h, i).hi; ++j) {
            const int64_t line = (at_axis(t, 0, b) * n[1] + at_axis(t, 1, h)) * n[2] + at_axis(t, 2, i);
            counts[line * n[3] + at_axis(t, 3, j - first)] = 1;
          }
    }
    int64_t index = 0;
    t.each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
      const double x = value();
      if (counts[index++]) t.set(x, a, b, c, d);
    });
    const int64_t whole[4] = {case_.batch, case_.heads, case_.seqlen_q, case_.seqlen_k};
    for (int axis = 0; axis < 4; ++axis)
      if (axes[axis] == '0') t.repeat(axis, whole[axis]);
    return t;
  };
  bias = make(case_.bias, case_.bias_type, 0, [&] {
    const double x = random.normal();
    return case_.infinite_bias && random.chance(0.2) ? -INFINITY : x;
  });
  mask = make(case_.mask, Type::boolean, case_.mask_tail, [&] { return random.chance(0.7) ? 1.0 : 0.0; });
}

void CaseData::make_heads(Random& random) {
  if (case_.sink) {
    sink = Stored(Type::f32, {case_.heads, 1, 1, 1});
    for (int64_t h = 0; h < case_.heads; ++h) sink.set(2 * random.normal(), h);
  }
  if (!case_.alibi.empty()) {
    alibi = Stored(Type::f32, {case_.alibi[0] == '1' ? 1 : case_.batch, case_.heads, 1, 1});
    alibi.each([&](int64_t b, int64_t h, int64_t, int64_t) {
      alibi.set(std::exp2(-static_cast<double>(h % 8) - 1) * random.uniform(), b, h);
    });
  }
}

void CaseData::make_rows(Random& random) {
  q = Stored(case_.type, rows_shape(case_.head_dim), layout_of(0));
  if (case_.backward) dout = Stored(out_type(), rows_shape(case_.value_dim), layout_of(4));
  if (case_.dlse) dlse = Stored(Type::f32, lse_shape(), layout_of(1));
  if (case_.prior) {
    prior_out = Stored(Type::f32, rows_shape(case_.value_dim), layout_of(2));
    prior_lse = Stored(Type::f32, lse_shape(), layout_of(3));
  }
  const auto fill = [&](Stored& t, int64_t b, int64_t h, int64_t i, bool counts, auto value) {
    for (int64_t d = 0; t && d < t.shape()[3]; ++d) {
      const double x = value(d, random.normal());
      if (counts) t.set(x, q_slot(b), q_row(b, i), h, d);
    }
  };
  const auto same = [](int64_t, double x) { return x; };
  for (int64_t b = 0; b < case_.batch; ++b) {
    for (int64_t i = 0; i < case_.row_slot(b); ++i) {
      for (int64_t h = 0; h < case_.heads; ++h) {
        const bool counts = row_counts(b, h, i), owned = i < case_.rows(b), has_prior = owned && !random.chance(0.2);
        fill(q, b, h, i, counts, [&](int64_t d, double x) { return query_element(case_, d, x); });
        // A prior gives rows without keys a result, and so a gradient.
        fill(dout, b, h, i, counts || (case_.prior && owned), same);
        fill(prior_out, b, h, i, has_prior, same);
        const double dlse_value = random.normal(), lse_value = has_prior ? 2 * random.normal() : -INFINITY;
        if (dlse && (counts || (case_.prior && owned))) dlse.set(dlse_value, q_slot(b), h, q_row(b, i));
        if (prior_lse && owned) prior_lse.set(lse_value, q_slot(b), h, q_row(b, i));
      }
    }
  }
}

void CaseData::make_keys(Random& random) {
  k = Stored(case_.type, keys_shape(case_.head_dim), layout_of(1));
  v = Stored(case_.type, keys_shape(case_.value_dim), layout_of(2));
  for (int64_t b = 0; b < case_.batch; ++b) {
    for (int64_t h = 0; h < case_.heads_kv; ++h) {
      for (int64_t j = 0; j < case_.keys(b); ++j) {
        const bool counts = key_counts(b, h, j);
        for (int64_t d = 0; d < case_.head_dim; ++d) {
          const double x = key_element(case_, j, case_.keys(b), d, random.normal());
          if (counts) k.set(x, k_slot(b), k_row(b, j), h, d);
        }
        for (int64_t d = 0; d < case_.value_dim; ++d) {
          const double x = value_element(case_, j, d, random.normal());
          if (counts) v.set(x, k_slot(b), k_row(b, j), h, d);
        }
      }
    }
  }
}

// ---- Outputs.

Outputs CaseData::outputs() const { return make_outputs({}, true); }

Outputs CaseData::dense_outputs(std::optional<Type> type) const { return make_outputs(type, false); }

Outputs CaseData::zero_outputs() const {
  Outputs outputs = dense_outputs(Type::f64);
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    for (const auto& [name, output] : outputs_of(pass)) {
      Stored& t = outputs.*output;
      t.each([&](int64_t a, int64_t b, int64_t c, int64_t d) { t.set(0, a, b, c, d); });
    }
  }
  return outputs;
}

Outputs CaseData::make_outputs(std::optional<Type> type, bool as_asked) const {
  Random random(case_.seed + 77);
  const auto make = [&](Type own, const Shape& shape, int tensor, std::optional<double> start) {
    Stored t(type.value_or(own), shape, as_asked ? layout_of(tensor) : Layout::rows_outside, as_asked);
    if (start) t.each([&](int64_t a, int64_t b, int64_t c, int64_t d) { t.set(*start, a, b, c, d); });
    return t;
  };
  const auto written = [&](double x) { return as_asked ? std::optional<double>() : x; };
  Outputs o;
  o.out = make(out_type(), rows_shape(case_.value_dim), 3, written(0));
  o.lse = make(Type::f32, lse_shape(), 2, written(-INFINITY));
  if (!case_.backward) return o;
  const auto gradient = [&](const Shape& shape, int tensor) {
    Stored t = make(gradient_type(), shape, tensor, written(0));
    if (!case_.accumulate) return t;
    t.each([&](int64_t a, int64_t b, int64_t c, int64_t d) { t.set(static_cast<float>(random.normal()), a, b, c, d); });
    return t;
  };
  if (case_.dq) o.dq = gradient(rows_shape(case_.head_dim), 1);
  if (case_.dk) o.dk = gradient(keys_shape(case_.head_dim), 2);
  if (case_.dv) o.dv = gradient(keys_shape(case_.value_dim), 0);
  if (case_.dbias) o.dbias = make(case_.fp32_gradients ? Type::f32 : case_.bias_type, bias.shape(), 3, written(0));
  if (case_.dsink) o.dsink = make(Type::f32, {case_.heads, 1, 1, 1}, 0, written(0));
  return o;
}

// ---- The call.

tw_attention CaseData::attention(const Outputs& results, Pass pass) const {
  const bool forward = pass == Pass::forward;
  tw_attention a;
  TW_INIT(a);
  const auto flag = [&](bool set, uint32_t bit) { a.flags |= set ? bit : 0u; };
  a.device_type = TW_CPU;
  a.threads = case_.threads, a.num_splits = case_.num_splits;
  a.q = q.view(), a.k = k.view(), a.v = v.view(), a.out = results.out.view();
  if (case_.lse || !forward) a.lse = results.lse.view();
  a.cu_seqlens_q = cu_seqlens_q.view(), a.cu_seqlens_k = cu_seqlens_k.view();
  a.seqused_q = used_q.view(), a.seqused_k = used_k.view(), a.leftpad_k = left_pad.view();
  a.batch_index_k = batch_index.view();
  if (case_.max_seqlen) a.max_seqlen_q = case_.seqlen_q, a.max_seqlen_k = case_.seqlen_k;
  a.softmax_scale = case_.scale.value_or(0), a.softcap = case_.softcap, a.dropout_p = case_.dropout_p;
  a.bias = bias.view(), a.alibi_slopes = alibi.view(), a.sink = sink.view();
  a.window_left = std::max<int64_t>(case_.window_left, 0), a.window_right = std::max<int64_t>(case_.window_right, 0);
  a.attention_chunk = case_.chunk;
  a.mask = mask.view(), a.key_begin = key_begin.view(), a.key_end = key_end.view();
  a.q_positions = q_positions.view(), a.k_positions = k_positions.view();
  if (case_.dropout_p > 0) a.dropout_seed = kDropoutSeed + case_.seed, a.dropout_offset = kDropoutOffset;
  if (forward) a.prior_out = prior_out.view(), a.prior_lse = prior_lse.view();
  flag(case_.causal, TW_CAUSAL), flag(case_.top_left, TW_TOP_LEFT);
  flag(case_.window_left != kUnbounded, TW_WINDOW_LEFT), flag(case_.window_right != kUnbounded, TW_WINDOW_RIGHT);
  flag(case_.scale.has_value(), TW_SOFTMAX_SCALE), flag(case_.mask_tail > 0, TW_MASK_TAIL);
  flag(case_.deterministic, TW_DETERMINISTIC), flag(case_.batch_invariant, TW_BATCH_INVARIANT);
  return a;
}

tw_attention_grad CaseData::gradients(const Outputs& results) const {
  tw_attention_grad g;
  TW_INIT(g);
  g.flags = case_.accumulate ? static_cast<uint32_t>(TW_GRAD_ACCUMULATE) : 0u;
  g.dout = dout.view(), g.dlse = dlse.view();
  g.dq = results.dq.view(), g.dk = results.dk.view(), g.dv = results.dv.view();
  g.dbias = results.dbias.view(), g.dsink = results.dsink.view();
  return g;
}

}  // namespace tilewise::cases
