// The edges and one shape of each option: for machines that are emulated, where the whole table takes hours.
#include <algorithm>
#include <iterator>

#include "cases/case.h"

namespace tilewise::cases {
namespace {

using List = std::vector<Case>;
constexpr Type kTypes[] = {Type::f32, Type::f16, Type::bf16};

Case shape(int64_t batch, int64_t rows, int64_t keys, int64_t heads, int64_t heads_kv, int64_t dim) {
  Case c;
  c.batch = batch, c.seqlen_q = rows, c.seqlen_k = keys;
  c.heads = heads, c.heads_kv = heads_kv;
  c.head_dim = c.value_dim = dim;
  return c;
}

// Vectors have 4, 8 or 16 lanes, tiles 4 or 8 keys by 16, 24 or 48 rows.
void add_lengths(List& list) {
  for (const int64_t n : {0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 23, 24, 25, 47, 48, 49}) {
    Case c = shape(1, n, n, 2, 1, 12);
    c.causal = true;
    list.push_back(c);
    c = shape(2, n, 30 - n / 2, 1, 1, 8);
    list.push_back(c);
  }
  list.push_back(shape(0, 4, 7, 1, 1, 8));
  list.push_back(shape(2, 5, 0, 2, 1, 8));
  Case c = shape(1, 60, 30, 2, 2, 16);
  c.causal = true;
  list.push_back(c);  // half of the rows see nothing
}

void add_dims(List& list) {
  for (const int64_t dim : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 128, 256}) {
    Case c = shape(1, 9, 21, 2, 1, dim);
    c.value_dim = 1 + dim * 37 % 67;
    c.type = kTypes[list.size() % 3];
    list.push_back(c);
  }
}

// In each type and layout; with several blocks of keys.
void add_types(List& list) {
  for (const Type type : kTypes) {
    for (const Layout layout : {Layout::rows_outside, Layout::heads_outside, Layout::gaps, Layout::unaligned}) {
      Case c = shape(2, 26, 35, 4, 2, 20);
      c.type = type, c.layout = layout, c.mixed_layouts = c.causal = layout == Layout::gaps;
      list.push_back(c);
    }
    Case c = shape(1, 50, 300, 2, 1, 24);
    c.type = type, c.fp32_out = true;
    list.push_back(c);
  }
}

void add_options(List& list) {
  for (const Option& option : all_options()) {
    Case c = shape(2, 19, 34, 2, 1, 12);
    c.value_dim = 20, c.type = kTypes[list.size() % 3];
    option(c);
    c.fp32_gradients = c.accumulate, c.fp32_out = c.prior;
    list.push_back(c);
  }
}

void add_packed(List& list) {
  Case c = shape(4, 30, 41, 2, 1, 16);
  c.packed_q = {5, 0, 30, 1}, c.packed_k = {7, 3, 41, 1};
  list.push_back(c);
  c.causal = true, c.spare = 2, c.layout = Layout::gaps, c.type = Type::bf16;
  list.push_back(c);
}

void add_fills(List& list) {
  for (const Fill fill : {Fill::zero_query, Fill::ones_value, Fill::one_hot_value, Fill::equal_keys, Fill::lowest,
                          Fill::negative, Fill::late_maximum, Fill::early_maximum, Fill::rising, Fill::huge}) {
    Case c = shape(1, 40, 100, 1, 1, 32);
    c.fill = fill, c.causal = true;
    c.backward = fill != Fill::lowest;  // an fp32 lse cannot carry scores of -1e30 to a backward
    list.push_back(c);
  }
}

List make_few() {
  List list;
  add_lengths(list);
  add_dims(list);
  add_types(list);
  add_options(list);
  add_packed(list);
  add_fills(list);
  return list;
}

}  // namespace

std::span<const Case> few_cases() {
  static const List list = make_few();
  return list;
}

}  // namespace tilewise::cases
