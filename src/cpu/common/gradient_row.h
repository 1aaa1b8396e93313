// Small steps of a backward pass, row by row: delta, gradients into their tensors, dbias.
#pragma once

#include "cpu/common/each_unit.h"
#include "cpu/common/score_row.h"
#include "cpu/common/sink_gradient.h"

namespace tilewise::cpu {

// dLSE - delta of a row whose dO and O are given as fp32, zeros up to whole vectors. delta = rowsum(dO * O).
template <class Simd>
float row_shift(const Problem& problem, const Sequence& s, int64_t h, int64_t i, const float* dout, const float* out) {
  const float dlse = problem.dlse ? lse_of(problem.dlse, s, i, h) : 0;
  if (problem.dlse) count_read(4);
  return dlse - dot<Simd>(dout, out, problem.value_dim);
}

// The row of dq, dk or dv at `offset`: factor * own, added to what is there if the call accumulates.
template <class Simd>
void store_gradient(const Problem& problem, const Tensor& t, int64_t offset, float factor, const float* own) {
  const int64_t dims = t.shape[3];
  count_written(dims * size_of(t.type));
  if (problem.accumulate) {
    count_read(dims * 4);
    float* sum = element_at<float>(t, offset);
    for (int64_t d = 0; d < dims; ++d) sum[d] += factor * own[d];
    return;
  }
  with_element(t.type,
               [&](auto element) { write_row<Simd>(own, dims, factor, element_at<decltype(element)>(t, offset)); });
}

// dk or dv of some keys, from panels that start at the first. `staging` holds kTileCols rows.
template <class Simd>
void store_panels(const Problem& problem, const Tensor& t, const Sequence& s, int64_t h, KeyRange keys, float factor,
                  const float* panels, float* staging) {
  constexpr int64_t kCols = Simd::kTileCols;
  const int64_t dims = t.shape[3], row = row_floats<Simd>(dims);
  float ones[kCols];
  for (float& one : ones) one = 1;
  for (int64_t j = keys.lo; j < keys.hi; j += kCols, panels += panel_floats<Simd>(dims)) {
    panel_to_rows<Simd>(panels, ones, dims, staging, row);
    for (int64_t i = 0; i < lesser(kCols, keys.hi - j); ++i)
      store_gradient<Simd>(problem, t, key_offset(t, s, j + i, h), factor, staging + i * row);
  }
}

// Keys without a live row: their gradient is 0.
template <class Simd>
void clear_keys(const Problem& problem, const Tensor& t, const Sequence& s, int64_t h, KeyRange keys) {
  if (!t || problem.accumulate) return;
  count_written(greater(0, keys.hi - keys.lo) * t.shape[3] * size_of(t.type));
  for (int64_t j = keys.lo; j < keys.hi; ++j)
    with_element(t.type, [&](auto element) {
      std::memset(key_of<decltype(element)>(t, s, j, h), 0, t.shape[3] * sizeof(element));
    });
}

// ---- dbias: sums over everything that reads an element of the bias, in fp32. They lie in the tensor itself, or in the
// workspace if its type is another. In a tensor of another type each element may be given once.

[[gnu::always_inline]] static inline int64_t elements_of(const Tensor& t) {
  return t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3];
}

template <class Simd>
Tensor carve_dbias_sums(const Problem& problem, Carver& carver) {
  Tensor sums = problem.dbias;
  if (!sums || sums.type == Type::f32) return sums;
  sums.data = reinterpret_cast<char*>(carver.take<float>(elements_of(sums)));
  sums.type = Type::f32;
  int64_t stride = 1;
  for (int axis = 3; axis >= 0; stride *= sums.shape[axis--]) sums.stride[axis] = sums.shape[axis] == 1 ? 0 : stride;
  return sums;
}

template <class Simd>
void add_element(float* sum, float x) {
  *sum += x;
}
template <class Simd, class Element>
void add_element(Element* given, float x) {
  Simd::store_first(given, Simd::set(x), 1);
}

// visit(element of t, offset of the same element in `like`)
template <class Simd, class Visit>
void each_element(const Tensor& t, const Tensor& like, Visit visit) {
  with_element(t.type, [&](auto element) {
    for (int64_t a = 0; a < t.shape[0]; ++a)
      for (int64_t b = 0; b < t.shape[1]; ++b)
        for (int64_t c = 0; c < t.shape[2]; ++c)
          for (int64_t d = 0; d < t.shape[3]; ++d)
            visit(element_at<decltype(element)>(t, t.offset(a, b, c, d)), like.offset(a, b, c, d));
  });
}

// Adds dS of a row, as far as its keys are in `keys`.
template <class Simd>
void add_to_dbias(const ScoreRow& row, const float* ds, KeyRange keys, const Tensor& sums) {
  const int64_t begin = greater(row.begin(), keys.lo - row.first_key), end = lesser(row.end(), keys.hi - row.first_key);
  const int64_t at = sums.offset(row.sequence.index, row.h, row.i, row.first_key), stride = sums.stride[3];
  with_element(sums.type, [&](auto element) {
    auto* sum = element_at<decltype(element)>(sums, at);
    for (int64_t j = begin; j < end; ++j) add_element<Simd>(sum + j * stride, ds[j]);
  });
}

template <class Simd>
void clear_dbias(const Tensor& t) {
  each_element<Simd>(t, t, [](auto* element, int64_t) { std::memset(element, 0, sizeof(*element)); });
}

template <class Simd>
void store_dbias(const Tensor& sums, const Tensor& dbias) {
  if (sums.data == dbias.data) return;
  each_element<Simd>(dbias, sums, [&](auto* element, int64_t at) {
    Simd::store_first(element, Simd::set(*element_at<float>(sums, at)), 1);
  });
}

}  // namespace tilewise::cpu
