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

template <class S, typename S::Vec (*Op)(typename S::Vec, typename S::Vec)>
SimdOps::Two two(const char* name) {
  return {name, [](const float* a, const float* b, float* to) { S::store(to, Op(S::load(a), S::load(b))); }};
}

template <class S>
void fill_traits(SimdOps& ops) {
  const SimdOps::Two all[] = {two<S, S::add>("add"),         two<S, S::sub>("sub"),
                              two<S, S::mul>("mul"),         two<S, S::div>("div"),
                              two<S, S::max>("max"),         two<S, S::min>("min"),
                              two<S, S::equal>("equal"),     two<S, S::above>("above"),
                              two<S, S::below>("below"),     two<S, S::not_below_equal>("not_below_equal"),
                              two<S, S::both>("both"),       two<S, S::either>("either"),
                              two<S, S::keep_if>("keep_if"), two<S, S::keep_unless>("keep_unless")};
  for (int i = 0; i < 14; ++i) ops.two[i] = all[i];
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
    S::store(to, S::select(S::load(mask), S::load(yes), S::load(no)));
  };
  ops.is_nan = [](const float* a, float* to) { S::store(to, S::is_nan(S::load(a))); };
  ops.any = [](const float* mask) { return S::any(S::load(mask)); };
  ops.transpose = [](float* square) {
    typename S::Vec x[S::kLanes];
    for (int i = 0; i < S::kLanes; ++i) x[i] = S::load(square + i * S::kLanes);
    S::transpose(x);
    for (int i = 0; i < S::kLanes; ++i) S::store(square + i * S::kLanes, x[i]);
  };
  ops.product = S::product;
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
    for (int v = 0; v < S::kTileCols; v += S::kLanes) S::store(mask + v, limits.live(key, v));
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
