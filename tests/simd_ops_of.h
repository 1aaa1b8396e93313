// SimdOps of one instruction set: included by a translation unit built for it.
#pragma once

#include "cpu/common/scores.h"
#include "cpu/common/tile.h"
#include "simd_ops.h"

namespace tilewise::cpu {

template <class S, class Element>
void fill_loads(ElementOps& ops) {
  ops.load = [](const void* from, float* to) { S::store(to, S::load(static_cast<const Element*>(from))); };
  ops.load_first = [](const void* from, int64_t n, float* to) {
    S::store(to, S::load_first(static_cast<const Element*>(from), n));
  };
}

template <class S, class Element>
void fill_element(ElementOps& ops) {
  fill_loads<S, Element>(ops);
  ops.store = [](void* to, const float* from) { S::store(static_cast<Element*>(to), S::load(from)); };
  ops.store_first = [](void* to, const float* from, int64_t n) {
    S::store_first(static_cast<Element*>(to), S::load(from), n);
  };
  ops.read_row = [](const void* from, int64_t n, float scale, float* to) {
    read_row<S>(static_cast<const Element*>(from), n, scale, to);
  };
  ops.write_row = [](const float* from, int64_t n, float scale, void* to) {
    write_row<S>(from, n, scale, static_cast<Element*>(to));
  };
}

// A mask has no form of its own in memory: lanes that are set are NaN in a float array, all ones if they come from
// here.
template <class S>
typename S::Mask load_mask(const float* lanes) {
  return S::is_nan(S::load(lanes));
}
template <class S>
void store_mask(float* lanes, typename S::Mask mask) {
  S::store(lanes, S::keep_if(mask, S::set(__builtin_bit_cast(float, ~0u))));
}

template <class S, typename S::Vec (*Op)(typename S::Vec, typename S::Vec)>
SimdOps::Two two(const char* name) {
  return {name, [](const float* a, const float* b, float* to) { S::store(to, Op(S::load(a), S::load(b))); }};
}
template <class S, typename S::Mask (*Op)(typename S::Vec, typename S::Vec)>
SimdOps::Two comparison(const char* name) {
  return {name, [](const float* a, const float* b, float* to) { store_mask<S>(to, Op(S::load(a), S::load(b))); }};
}
template <class S, typename S::Mask (*Op)(typename S::Mask, typename S::Mask)>
SimdOps::Two of_masks(const char* name) {
  return {name,
          [](const float* a, const float* b, float* to) { store_mask<S>(to, Op(load_mask<S>(a), load_mask<S>(b))); }};
}
template <class S, typename S::Vec (*Op)(typename S::Mask, typename S::Vec)>
SimdOps::Two choice(const char* name) {
  return {name, [](const float* a, const float* b, float* to) { S::store(to, Op(load_mask<S>(a), S::load(b))); }};
}

template <class S>
void fill_traits(SimdOps& ops) {
  const SimdOps::Two all[] = {two<S, S::add>("add"),
                              two<S, S::sub>("sub"),
                              two<S, S::mul>("mul"),
                              two<S, S::div>("div"),
                              two<S, S::max>("max"),
                              two<S, S::min>("min"),
                              comparison<S, S::equal>("equal"),
                              comparison<S, S::above>("above"),
                              comparison<S, S::below>("below"),
                              comparison<S, S::not_below_equal>("not_below_equal"),
                              of_masks<S, S::both>("both"),
                              of_masks<S, S::either>("either"),
                              of_masks<S, S::without>("without"),
                              choice<S, S::keep_if>("keep_if"),
                              choice<S, S::keep_unless>("keep_unless")};
  constexpr int kCount = sizeof(all) / sizeof(all[0]);
  static_assert(kCount == sizeof(ops.two) / sizeof(ops.two[0]));
  for (int i = 0; i < kCount; ++i) ops.two[i] = all[i];
  ops.fma = [](const float* a, const float* b, const float* c, float* to) {
    S::store(to, S::fma(S::load(a), S::load(b), S::load(c)));
  };
  ops.fms = [](const float* a, const float* b, const float* c, float* to) {
    S::store(to, S::fms(S::load(a), S::load(b), S::load(c)));
  };
  ops.nearest = [](const float* a, float* whole, int32_t* integer) {
    const auto nearest = S::nearest(S::load(a));
    S::store(whole, nearest);
    S::store(reinterpret_cast<float*>(integer), S::to_integer(nearest));
  };
  ops.select = [](const float* mask, const float* yes, const float* no, float* to) {
    S::store(to, S::select(load_mask<S>(mask), S::load(yes), S::load(no)));
  };
  ops.is_nan = [](const float* a, float* to) { store_mask<S>(to, S::is_nan(S::load(a))); };
  ops.any_of_none = [] { return S::any(S::none()); };
  ops.any = [](const float* mask) { return S::any(load_mask<S>(mask)); };
  ops.transpose = [](float* square) {
    typename S::Vec x[S::kLanes];
    for (int i = 0; i < S::kLanes; ++i) x[i] = S::load(square + i * S::kLanes);
    S::transpose(x);
    for (int i = 0; i < S::kLanes; ++i) S::store(square + i * S::kLanes, x[i]);
  };
  ops.product = S::product;
  if constexpr (S::kTileCols == 2 * S::kLanes) ops.narrow_product = narrow_product<S>;
  ops.strip_product = S::strip_product;
}

template <class S>
void fill_common(SimdOps& ops) {
  ops.exp2 = [](const float* x, float* to) { S::store(to, exp2<S>(S::load(x))); };
  ops.exp = [](const float* x, float* to) { S::store(to, exp<S>(S::load(x))); };
  ops.exp2_of_multiple = [](float c, const float* x, float* to) {
    typename S::Vec power[1] = {S::load(x)};
    Exp2OfMultiple<S>(c).apply(power);
    S::store(to, power[0]);
  };
  ops.tanh = [](const float* x, float* to) { S::store(to, tanh<S>(S::load(x))); };
  ops.rows_to_panel = rows_to_panel<S>;
  ops.panel_to_rows = panel_to_rows<S>;
  ops.live = [](const KeyRange* rows, int64_t first_key, int64_t keys, int64_t key, float* mask) {
    PanelLimits<S> limits;
    limits.place(rows, first_key, keys);
    for (int v = 0; v < S::kTileCols; v += S::kLanes) store_mask<S>(mask + v, limits.live(key, v));
  };
  ops.order_longest_first = order_longest_first<S>;
  ops.add_terms = [](const float* score, const float* added, float* to) {
    S::store(to, add_terms<S>(S::load(score), S::load(added)));
  };
  ops.softcap = [](const Problem& problem, const float* x, float* to, float* slope) {
    const Softcap<S> softcap(problem);
    const auto capped = softcap.of(S::load(x));
    S::store(to, capped);
    S::store(slope, softcap.slope_at(capped));
  };
  ops.fill_added = [](const Panel& panel, float* added_t) {
    ScoreTerms<S> terms(panel.problem);
    terms.place(panel.sequence, panel.heads, panel.rows);
    terms.fill_added(panel.first_key, panel.count, added_t);
  };
  ops.fill_kept = [](const Panel& panel, float* kept_t) {
    ScoreTerms<S> terms(panel.problem);
    terms.place(panel.sequence, panel.heads, panel.rows);
    terms.fill_kept(panel.first_key, panel.count, kept_t);
  };
}

template <class S>
SimdOps ops_of(const char* isa, double exp2_error, double exp_error_growth) {
  SimdOps ops = {};
  ops.isa = isa, ops.exp2_error = exp2_error, ops.exp_error_growth = exp_error_growth;
  ops.lanes = S::kLanes;
  ops.tile_rows = S::kTileRows, ops.tile_cols = S::kTileCols;
  ops.strip_rows = S::kStripRows, ops.strip_cols = S::kStripCols;
  fill_traits<S>(ops);
  fill_common<S>(ops);
  fill_element<S, float>(ops.f32);
  fill_element<S, Half>(ops.f16);
  fill_element<S, Bfloat16>(ops.bf16);
  fill_loads<S, Boolean>(ops.boolean);
  return ops;
}

}  // namespace tilewise::cpu
