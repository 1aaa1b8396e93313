// Cases for tiles of tensor cores: 16-bit types and some fp32, head sizes that are multiples of 8, lengths around
// blocks of 32 to 256 rows and keys. all_cases() has few of these, since it is made for vectors.
#include <algorithm>
#include <array>

#include "cases/case.h"

namespace tilewise::cases {
namespace {

using List = std::vector<Case>;
constexpr Type kTypes[] = {Type::bf16, Type::f16};
constexpr int64_t kHeadDims[] = {64, 128, 256, 96, 192};  // with tiles of their own

// Types take turns.
Case shape(const List& list, int64_t batch, int64_t rows, int64_t keys, int64_t heads, int64_t heads_kv, int64_t dim) {
  Case c;
  c.batch = batch, c.seqlen_q = rows, c.seqlen_k = keys;
  c.heads = heads, c.heads_kv = heads_kv;
  c.head_dim = c.value_dim = dim;
  c.type = kTypes[list.size() % 2];
  return c;
}

void add_lengths(List& list) {
  for (const int64_t dim : kHeadDims) {
    for (const int64_t n : {1, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 191, 193, 255, 256, 257, 280}) {
      Case c = shape(list, 1, n, n, 1, 1, dim);
      c.causal = list.size() % 4 < 2;
      list.push_back(c);
      c.type = kTypes[list.size() % 2];
      c.seqlen_k = 281 - n, c.causal = true;
      c.top_left = list.size() % 4 < 2;
      list.push_back(c);
    }
    for (const int64_t more : {-2, -1, 1, 2}) {  // the diagonal cuts corners off blocks
      Case c = shape(list, 1, 200, 200 + more, 1, 1, dim);
      c.causal = true;
      list.push_back(c);
    }
    list.push_back(shape(list, 2, 70, 0, 2, 1, dim));
    list.push_back(shape(list, 2, 0, 70, 2, 1, dim));
  }
}

void add_head_dims(List& list) {
  for (int64_t dim = 8; dim <= 256; dim += 8) {
    Case c = shape(list, 1, 70, 140, 2, 1, dim);
    c.causal = dim % 16 == 0;
    list.push_back(c);
    c.value_dim = dim == 128 ? 64 : (dim * 5 / 8 + 7) / 8 * 8;
    list.push_back(c);
    std::swap(c.head_dim, c.value_dim);
    list.push_back(c);
  }
}

void add_options(List& list) {
  for (const int64_t dim : kHeadDims) {
    for (const Option& option : all_options()) {
      Case c = shape(list, 2, 90, 200, 2, 1, dim);
      option(c);
      c.fp32_gradients = c.accumulate, c.fp32_out = c.prior;
      list.push_back(c);
      c.causal = true, c.type = kTypes[list.size() % 2];
      if (dim == 64) list.push_back(c);
    }
  }
}

void add_layouts(List& list) {
  for (const int64_t dim : {64, 80, 128}) {
    for (const Layout layout : {Layout::rows_outside, Layout::heads_outside, Layout::gaps, Layout::unaligned}) {
      Case c = shape(list, 1, 140, 170, 4, 2, dim);
      c.layout = layout, c.causal = true;
      list.push_back(c);
      c.fp32_out = true, c.type = kTypes[list.size() % 2];
      list.push_back(c);
      c.fp32_out = false, c.fp32_gradients = true;
      list.push_back(c);
    }
  }
}

void add_packed(List& list) {
  for (const int64_t dim : {64, 128, 192}) {
    Case c = shape(list, 5, 200, 300, 2, 1, dim);
    c.packed_q = {65, 0, 200, 1, 128}, c.packed_k = {130, 70, 300, 0, 128};
    list.push_back(c);
    c.causal = true, c.spare = 40, c.type = kTypes[list.size() % 2];
    list.push_back(c);
    c.used_q = {60, 0, 129, 1, 64}, c.used_k = {1, 64, 255, 0, 127};
    list.push_back(c);
    c.window_left = 50;
    list.push_back(c);
    c.dropout_p = 0.2f, c.sink = c.dsink = true;
    list.push_back(c);
  }
}

// Each with both types and every kind of tile: without a mask, causal, with lengths.
void add_fills(List& list) {
  for (const int64_t dim : kHeadDims) {
    for (const Type type : kTypes) {
      for (const Fill fill :
           {Fill::zero_query, Fill::ones_value, Fill::one_hot_value, Fill::equal_keys, Fill::lowest, Fill::negative,
            Fill::late_maximum, Fill::early_maximum, Fill::rising, Fill::falling, Fill::huge}) {
        Case c = shape(list, 1, 150, 290, 1, 1, dim);
        c.type = type, c.fill = fill;
        c.backward = fill != Fill::lowest;  // an fp32 lse cannot carry scores of -1e30 to a backward
        list.push_back(c);
        c.causal = true;
        list.push_back(c);
        c.batch = 2, c.packed_q = {140, 10}, c.packed_k = {90, 200};
        list.push_back(c);
      }
    }
  }
}

// Windows whose edge leaves one key of a block dead, or one alive; and bias behind softcap.
void add_edges(List& list) {
  for (const int64_t dim : kHeadDims) {
    for (const Type type : kTypes) {
      Case c = shape(list, 1, 200, 200, 1, 1, dim);
      c.type = type, c.window_left = 1;
      for (const int64_t right : {0, 30, 62, 126}) {
        c.window_right = right;
        list.push_back(c);
      }
      c = shape(list, 1, 70, 90, 2, 1, dim);
      c.type = type, c.softcap = 2, c.bias = "bhqk";
      list.push_back(c);
    }
  }
}

// Terms that come in pieces of two or four keys, in rows that begin and end anywhere in a piece; scores near their
// softcap and far below it.
void add_pieces_of_terms(List& list) {
  for (const auto& [keys, dim] : {std::pair<int64_t, int64_t>{200, 64}, {201, 64}, {202, 64}, {204, 64}, {200, 256}}) {
    for (const Type type : {Type::f32, Type::f16, Type::bf16}) {
      Case plain = shape(list, 2, 70, keys, 4, 2, dim);
      plain.type = plain.bias_type = type, plain.causal = true;
      const auto add = [&](auto change) {
        Case c = plain;
        change(c);
        list.push_back(c);
      };
      add([](Case& c) { c.bias = "bhqk", c.dbias = true; });
      add([](Case& c) { c.bias = "11qk", c.bias_type = Type::f32, c.softcap = 20, c.alibi = "1h"; });
      add([](Case& c) { c.mask = "1hqk", c.causal = false; });
      add([](Case& c) { c.mask = "b11k", c.alibi = "bh", c.mask_tail = c.seqlen_k / 8 * 4; });
      add([](Case& c) { c.softcap = 1, c.scale = 0.5f; });
      add([](Case& c) { c.mask = c.bias = "b1qk", c.softcap = 5; });
    }
  }
}

// A part of the gradients, and what they are added to.
void add_gradients(List& list) {
  for (const int64_t dim : {64, 128, 256}) {
    for (int wanted = 1; wanted < 7; ++wanted) {
      Case c = shape(list, 1, 140, 170, 2, 1, dim);
      c.dq = wanted & 1, c.dk = wanted & 2, c.dv = wanted & 4;
      c.causal = wanted % 2 == 0;
      list.push_back(c);
      c.deterministic = true;
      list.push_back(c);
    }
    Case c = shape(list, 2, 150, 150, 4, 1, dim);
    c.deterministic = c.causal = c.accumulate = c.fp32_gradients = c.dlse = true;
    list.push_back(c);
  }
}

void add_groups(List& list) {
  for (const auto& [heads, heads_kv] : {std::pair<int64_t, int64_t>{8, 1}, {6, 2}, {5, 5}, {12, 4}, {3, 1}}) {
    Case c = shape(list, 2, 70, 130, heads, heads_kv, 128);
    c.causal = heads_kv > 1;
    list.push_back(c);
    c.deterministic = true, c.head_dim = c.value_dim = 64;
    list.push_back(c);
  }
}

// Masks whose edges lie within tiles, between them, and together.
void add_masks(List& list) {
  for (const auto& [left, right] :
       {std::pair<int64_t, int64_t>{63, 0}, {64, 64}, {0, 0}, {127, kUnbounded}, {kUnbounded, 31}, {200, 100}}) {
    Case c = shape(list, 1, 280, 300, 1, 1, 64);
    c.window_left = left, c.window_right = right;
    list.push_back(c);
    c.chunk = 96;
    list.push_back(c);
    c = shape(list, 1, 260, 150, 2, 1, 128);
    c.window_left = left, c.window_right = right, c.causal = true;
    list.push_back(c);
  }
}

// More tiles than a GPU has multiprocessors, and many tiles in a row.
void add_many_tiles(List& list) {
  for (const int64_t dim : {64, 128}) {
    for (const auto& [batch, rows, keys, heads] :
         {std::array<int64_t, 4>{20, 130, 20, 16}, {1, 40, 5000, 1}, {1, 3000, 40, 2}}) {
      Case c = shape(list, batch, rows, keys, heads, 1, dim);
      c.causal = dim == 64;
      list.push_back(c);
    }
  }
}

// fp32 has tiles of its own, and multiplies 16 bits too where O is in fp32.
void add_fp32(List& list) {
  for (const int64_t dim : kHeadDims) {
    for (const int64_t n : {15, 16, 17, 33, 63, 64, 65, 130}) {
      Case c = shape(list, 1, n, 145 - n, 2, 1, dim);
      c.type = Type::f32, c.causal = n % 2 == 0;
      list.push_back(c);
    }
    for (const Option& option : all_options()) {
      Case c = shape(list, 2, 70, 100, 2, 1, dim);
      option(c);
      c.type = Type::f32, c.fp32_gradients = c.accumulate, c.fp32_out = c.prior;
      list.push_back(c);
    }
    Case c = shape(list, 2, 150, 150, 4, 1, dim);
    c.type = Type::f32, c.deterministic = c.causal = c.accumulate = c.dlse = true;
    list.push_back(c);
    c = shape(list, 2, 70, 100, 2, 1, dim);
    c.fp32_out = c.causal = true;
    list.push_back(c);
  }
}

// Tiles of dbias, along the axes that repeat and those that do not.
void add_bias(List& list) {
  for (const char* axes : {"1111", "b111", "1h11", "11q1", "111k", "11qk", "b1qk", "1hqk", "bhqk", "bhq1", "bh1k"}) {
    Case c = shape(list, 2, 130, 200, 4, 2, 72);
    c.bias = axes, c.dbias = true;
    list.push_back(c);
    c.type = c.bias_type = kTypes[list.size() % 2], c.value_dim = 136, c.causal = c.deterministic = true;
    list.push_back(c);
    c.type = Type::f32, c.softcap = 2;
    list.push_back(c);
    c.packed_q = {70, 0, 130}, c.packed_k = {64, 10, 200}, c.batch = 3, c.softcap = 0;
    list.push_back(c);
  }
}

// All options together, at random.
void add_random(List& list) {
  constexpr uint64_t kSeed = 2026;
  constexpr int64_t kCases = 150;
  for (int64_t index = 0; index < kCases; ++index) {
    Case c = random_case(kSeed, index);
    c.type = kTypes[list.size() % 2];
    c.head_dim = std::min<int64_t>((c.head_dim + 7) / 8 * 8, 256);
    c.value_dim = index % 3 == 0 ? std::min<int64_t>((c.value_dim + 7) / 8 * 8, 256) : c.head_dim;
    c.layout = index % 2 == 0 ? Layout::rows_outside : Layout::heads_outside;
    c.mixed_layouts = false;
    c.fp32_out = c.prior, c.fp32_gradients = c.accumulate;
    list.push_back(c);
  }
}

List make_tile_cases() {
  List list;
  add_lengths(list);
  add_head_dims(list);
  add_options(list);
  add_layouts(list);
  add_packed(list);
  add_edges(list);
  add_pieces_of_terms(list);
  add_fills(list);
  add_gradients(list);
  add_groups(list);
  add_masks(list);
  add_many_tiles(list);
  add_fp32(list);
  add_bias(list);
  add_random(list);
  return list;
}

}  // namespace

std::span<const Case> tile_cases() {
  static const List list = make_tile_cases();
  return list;
}

}  // namespace tilewise::cases
