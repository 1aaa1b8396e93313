// The table of cases. Groups go from the plain to the odd; each group says what it is there to catch.
#include <algorithm>
#include <array>

#include "cases/case.h"

namespace tilewise::cases {
namespace {

using List = std::vector<Case>;

Case shape(int64_t batch, int64_t rows, int64_t keys, int64_t heads, int64_t heads_kv, int64_t dim) {
  Case c;
  c.batch = batch, c.seqlen_q = rows, c.seqlen_k = keys;
  c.heads = heads, c.heads_kv = heads_kv;
  c.head_dim = c.value_dim = dim;
  return c;
}

Case packed(std::vector<int64_t> rows, std::vector<int64_t> keys, int64_t heads, int64_t heads_kv, int64_t dim) {
  const auto longest = [](const auto& lengths) { return *std::max_element(lengths.begin(), lengths.end()); };
  Case c = shape(static_cast<int64_t>(rows.size()), longest(rows), longest(keys), heads, heads_kv, dim);
  c.packed_q = std::move(rows), c.packed_k = std::move(keys);
  return c;
}

// Options are put on cases of two sequences, with at least 6 rows and 8 keys.
constexpr Option kOptions[] = {
    [](Case& c) { c.causal = true; },
    [](Case& c) { c.causal = c.top_left = true; },
    [](Case& c) { c.window_left = c.seqlen_k / 5; },
    [](Case& c) { c.window_right = c.seqlen_k / 11; },
    [](Case& c) { c.window_left = c.seqlen_k / 3, c.window_right = 0; },
    [](Case& c) { c.chunk = c.seqlen_k / 4 + 1; },
    [](Case& c) {
      c.used_q = {c.seqlen_q / 2, c.seqlen_q - 4};
    },
    [](Case& c) {
      c.used_k = {c.seqlen_k * 3 / 4, 0};
    },
    [](Case& c) {
      c.left_pad = {c.seqlen_k / 6, 0};
    },
    [](Case& c) { c.key_begin = "bhq", c.key_end = "11q"; },
    [](Case& c) { c.q_positions = "bq", c.k_positions = "1k", c.causal = true; },
    [](Case& c) { c.q_positions = "1q", c.window_left = c.seqlen_k / 3; },
    [](Case& c) { c.mask = "b1qk"; },
    [](Case& c) { c.mask = "1hqk", c.mask_tail = c.seqlen_k / 5; },
    [](Case& c) {
      c.batch_index = {1, 0}, c.backward = false;
    },
    [](Case& c) { c.scale = -0.3f; },
    [](Case& c) { c.softcap = 3; },
    [](Case& c) { c.bias = "bhqk", c.dbias = true; },
    [](Case& c) { c.bias = "1h1k", c.dbias = true; },
    [](Case& c) { c.bias = "b1qk", c.infinite_bias = true; },
    [](Case& c) { c.alibi = "bh"; },
    [](Case& c) { c.sink = c.dsink = true; },
    [](Case& c) { c.dropout_p = 0.3f; },
    [](Case& c) { c.prior = true; },
    [](Case& c) { c.dlse = true; },
    [](Case& c) { c.accumulate = true; },
};

// Every length at which a tile, a block or a vector begins or ends: queries come in 8, 24 and 48, keys in 4, 96, 192.
void add_lengths(List& list) {
  for (const int64_t n : {0, 1, 2, 3, 7, 8, 9, 23, 24, 25, 47, 48, 49, 95, 96, 97, 191, 192, 193}) {
    for (const bool causal : {false, true}) {
      Case c = shape(1, n, n, 2, 2, 32);
      c.causal = causal;
      list.push_back(c);
    }
    Case c = shape(1, n, 50, 2, 1, 20);
    list.push_back(c);
    c.seqlen_q = 50, c.seqlen_k = n, c.causal = true;
    list.push_back(c);
  }
  for (int64_t rows = 1; rows <= 110; rows += rows < 30 ? 1 : 7) {  // together with keys of every length
    Case c = shape(2, rows, 120 - rows, 2, 2, 8);
    list.push_back(c);
    c.causal = true;
    list.push_back(c);
    c.top_left = true;
    list.push_back(c);
  }
  for (const int64_t n : {767, 768, 769}) {
    Case c = shape(1, 30, n, 1, 1, 16);
    list.push_back(c);
    c.causal = true;
    list.push_back(c);
  }
  list.push_back(shape(0, 4, 7, 1, 1, 8));
  list.push_back(shape(3, 0, 7, 2, 1, 8));
  list.push_back(shape(2, 16, 0, 4, 4, 64));
  for (const auto& [batch, rows, keys] : {std::array<int64_t, 3>{0, 4, 7}, {2, 0, 7}, {2, 16, 0}, {2, 0, 0}}) {
    for (const char* axes : {"b1q1", "1h11", "1h1k", "bhqk"}) {
      Case c = shape(batch, rows, keys, 2, 1, 8);
      c.bias = axes, c.dbias = c.sink = c.dsink = true;
      list.push_back(c);
    }
  }
}

// Several chunks of keys in a backward, several blocks in a forward.
void add_long(List& list) {
  for (const int64_t n : {777, 1700}) {
    Case c = shape(1, n, n + 111, 3, 1, 64);
    c.slow = true;
    list.push_back(c);
    c.causal = true;
    list.push_back(c);
    c.window_left = 100;
    list.push_back(c);
  }
  Case c = shape(1, 128, 64, 2, 2, 64);
  c.causal = true;
  list.push_back(c);  // rows 0..63 see nothing
  c = shape(1, 129, 32, 1, 1, 64);
  c.window_left = 32, c.window_right = 64;
  list.push_back(c);
  c = shape(1, 5, 2000, 1, 1, 59);
  c.window_left = 0, c.window_right = 256;
  list.push_back(c);
}

void add_dims(List& list) {
  for (const int64_t dim : {1,  2,  3,   4,   5,   7,   8,   9,   15,  16,  17,  31,  33,  40,  59, 64,
                            72, 80, 100, 127, 128, 129, 160, 192, 255, 256, 257, 300, 320, 511, 512}) {
    list.push_back(shape(1, 37, 53, 2, 1, dim));
    Case c = shape(1, 29, 61, 1, 1, dim);
    c.value_dim = 1 + (dim * 37 + 11) % 131;
    c.causal = true;
    list.push_back(c);
  }
  for (int64_t dim = 1; dim <= 40; ++dim) {
    Case c = shape(1, 7, 9, 2, 1, dim);
    c.value_dim = 41 - dim;
    list.push_back(c);
  }
  for (const auto& [dim, value_dim] :
       {std::pair<int64_t, int64_t>{192, 128}, {128, 96}, {64, 512}, {1, 512}, {512, 1}, {576 - 64, 33}}) {
    Case c = shape(1, 26, 40, 2, 2, dim);
    c.value_dim = value_dim;
    list.push_back(c);
  }
}

// 16-bit rows that end inside of a vector, at its end and after it.
void add_dims_in_16_bits(List& list) {
  for (const Type type : {Type::f16, Type::bf16}) {
    for (const int64_t dim :
         {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 80, 96, 127, 128, 129, 192, 255, 256, 257, 511, 512}) {
      Case c = shape(1, 19, 35, 2, 1, dim);
      c.type = type;
      list.push_back(c);
      c.value_dim = 513 - dim, c.causal = true;
      list.push_back(c);
    }
  }
}

void add_types_and_layouts(List& list) {
  for (const Type type : {Type::f32, Type::f16, Type::bf16}) {
    for (const Layout layout : {Layout::rows_outside, Layout::heads_outside, Layout::gaps, Layout::unaligned}) {
      for (const bool mixed : {false, true}) {
        Case c = shape(2, 50, 75, 4, 2, 40);
        c.type = type, c.layout = layout, c.mixed_layouts = mixed;
        c.causal = mixed;
        list.push_back(c);
      }
    }
  }
  for (const Type type : {Type::f16, Type::bf16}) {
    Case c = shape(1, 70, 300, 2, 1, 64);
    c.type = type, c.causal = true;
    list.push_back(c);
    c.fp32_out = true;
    list.push_back(c);
    c.fp32_gradients = true;
    list.push_back(c);
    c.accumulate = true, c.prior = true;
    list.push_back(c);
    c = shape(1, 33, 37, 2, 2, 33);
    c.type = type, c.layout = Layout::unaligned;
    list.push_back(c);
  }
}

// Two chunks of keys in a backward, with sums in 16 bits and in 32.
void add_chunks_in_16_bits(List& list) {
  for (const Type type : {Type::f16, Type::bf16}) {
    Case c = shape(2, 70, 900, 4, 2, 20);
    c.value_dim = 12, c.type = c.bias_type = type, c.bias = "1hqk", c.dbias = true;
    list.push_back(c);
    c.fp32_gradients = true;
    list.push_back(c);
  }
}

// More keys than a block of dbias has.
void add_long_bias(List& list) {
  for (const char* axes : {"bhqk", "1h1k"}) {
    Case c = shape(2, 30, 1100, 2, 1, 8);
    c.bias = axes, c.dbias = true;
    list.push_back(c);
  }
}

void add_heads(List& list) {
  for (const auto& [heads, heads_kv] :
       {std::pair<int64_t, int64_t>{4, 4}, {4, 2}, {8, 2}, {6, 2}, {12, 3}, {9, 3}, {7, 1}, {14, 2}, {4, 1}, {71, 1}}) {
    Case c = shape(2, 30, 45, heads, heads_kv, 16);
    list.push_back(c);
    c.causal = true;
    list.push_back(c);
  }
}

Case for_options() { return shape(2, 75, 110, 4, 2, 24); }

// Whatever changes the scores, together.
void set_all_terms(Case& c) {
  c.mask = "b1qk", c.bias = "bhqk", c.dbias = true, c.softcap = 0.5f, c.alibi = "1h", c.sink = c.dsink = true;
  c.dropout_p = 0.3f, c.dlse = true, c.causal = true, c.q_positions = "1q", c.k_positions = "1k";
}

// Each option in a tile that it does not fill, and in a backward of two chunks of keys.
void add_options_by_size(List& list) {
  for (const auto& [rows, keys, heads_kv, dim, value_dim] :
       {std::array<int64_t, 5>{6, 8, 1, 4, 3}, {40, 900, 2, 8, 8}, {130, 111, 1, 20, 12}}) {
    Case plain = shape(2, rows, keys, 2, heads_kv, dim);
    plain.value_dim = value_dim;
    const auto add = [&](const Option& option) {
      Case c = plain;
      option(c);
      c.fp32_gradients = c.accumulate, c.fp32_out = c.prior;
      list.push_back(c);
    };
    for (const Option& option : kOptions) add(option);
    add(set_all_terms);
  }
}

// Each option alone, each pair of options, and every fourth pair in a 16-bit type.
void add_options(List& list) {
  const int64_t count = std::size(kOptions);
  for (int64_t a = 0; a < count; ++a) {
    for (const Type type : {Type::f32, Type::bf16}) {
      Case c = for_options();
      kOptions[a](c);
      c.type = type, c.fp32_gradients = c.accumulate, c.fp32_out = c.prior;
      list.push_back(c);
    }
    for (int64_t b = a + 1; b < count; ++b) {
      Case c = shape(2, 75, 110, 2, 1, 12);
      kOptions[a](c), kOptions[b](c);
      if (c.top_left && !c.q_positions.empty()) continue;
      if ((a * 7 + b) % 4 == 0) c.type = Type::f16;
      c.fp32_gradients = c.accumulate, c.fp32_out = c.prior;
      c.seed = static_cast<uint64_t>(100 * a + b);
      c.slow = (a + b) % 3 != 0;
      list.push_back(c);
    }
  }
}

void add_packed(List& list) {
  const auto add = [&](Case c) {
    list.push_back(c);
    c.causal = true, c.spare = 2, c.layout = Layout::gaps;
    list.push_back(c);
    c.max_seqlen = true, c.type = Type::bf16, c.mixed_layouts = true;
    list.push_back(c);
  };
  add(packed({5, 0, 60, 1}, {7, 3, 61, 1}, 2, 1, 32));
  add(packed({1, 0, 1}, {3, 0, 5}, 9, 3, 64));
  add(packed({76, 34, 146}, {1, 1, 1}, 1, 1, 32));
  add(packed({0, 5, 4, 0}, {7, 5, 2, 6}, 4, 1, 256));
  add(packed({3, 4}, {0, 6}, 2, 2, 64));
  add(packed({0, 0}, {0, 0}, 2, 1, 16));
  add(packed({1, 1, 1, 1, 1, 1, 1, 300}, {1, 1, 1, 1, 1, 1, 1, 300}, 2, 1, 16));
  Case c = packed({30, 0, 50}, {45, 9, 70}, 2, 1, 24);
  c.packed_k.clear(), c.seqlen_k = 70, c.batch = 3;  // packed rows over a dense cache
  c.used_k = {45, 9, 70}, c.max_seqlen = true;
  list.push_back(c);
  c.mask = "1hqk", c.bias = "b11k", c.dbias = true, c.causal = true;
  list.push_back(c);
  c.q_positions = "bq", c.alibi = "1h";
  list.push_back(c);
  c = packed({30, 8, 50}, {45, 9, 70}, 2, 1, 24);
  c.used_q = {20, 8, 0}, c.used_k = {45, 0, 33}, c.left_pad = {3, 0, 5}, c.dropout_p = 0.25f, c.spare = 3;
  list.push_back(c);
  c.key_begin = "1hq", c.max_seqlen = true, c.bias = "1hqk", c.dbias = true, c.sink = c.dsink = true;
  list.push_back(c);
}

void add_fills(List& list) {
  for (const Fill fill : {Fill::zero_query, Fill::ones_value, Fill::one_hot_value, Fill::equal_keys, Fill::lowest,
                          Fill::negative, Fill::late_maximum, Fill::early_maximum, Fill::rising, Fill::huge}) {
    for (const int64_t n : {1, 5, 100, 300}) {
      for (const bool causal : {false, true}) {
        Case c = shape(1, n, n, 1, 1, 32);
        c.fill = fill, c.causal = causal;
        // An fp32 lse cannot carry scores of -1e30 to a backward.
        c.backward = fill != Fill::lowest;
        list.push_back(c);
        c.type = causal ? Type::f16 : Type::bf16;
        const bool fits = fill == Fill::zero_query || fill == Fill::ones_value || fill == Fill::one_hot_value ||
                          fill == Fill::equal_keys || fill == Fill::negative || fill == Fill::lowest;
        if (fits && n != 5) list.push_back(c);
      }
    }
  }
  for (const int64_t n : {64, 192, 200, 704}) {  // zero-filled tails score 0, far above the rest
    Case c = shape(1, 40, n, 1, 1, 64);
    c.fill = Fill::negative, c.type = Type::bf16, c.mask = "11qk";
    list.push_back(c);
    c.mask.clear(), c.softcap = 30;
    list.push_back(c);
  }
  for (const float scale : {0.0f, -0.3f, 30.0f, 1e-20f}) {
    Case c = shape(1, 60, 250, 2, 2, 64);
    c.scale = scale, c.causal = true;
    list.push_back(c);
  }
  Case c = shape(1, 40, 512, 1, 1, 32);
  c.fill = Fill::rising, c.window_left = 100, c.sink = true;
  list.push_back(c);
}

// What a caller may leave out or ask for.
void add_outputs(List& list) {
  const auto add = [&](auto change) {
    Case c = shape(2, 60, 130, 4, 2, 48);
    change(c);
    list.push_back(c);
  };
  add([](Case& c) { c.lse = false; });
  add([](Case& c) { c.dq = false; });
  add([](Case& c) { c.dk = false; });
  add([](Case& c) { c.dv = false; });
  add([](Case& c) { c.dq = c.dk = false; });
  add([](Case& c) { c.dk = c.dv = false; });
  add([](Case& c) { c.dq = c.dk = c.dv = false, c.bias = "11qk", c.dbias = true; });
  add([](Case& c) { c.accumulate = c.dlse = true, c.causal = true, c.layout = Layout::gaps; });
  add([](Case& c) { c.deterministic = true; });
  add([](Case& c) { c.batch_invariant = true, c.used_k = {130, 20}; });
  for (const int splits : {1, 2, 3, 7}) {
    Case c = shape(1, 1, 700, 8, 2, 64);
    c.num_splits = splits, c.window_left = 127, c.sink = true, c.dsink = true;
    list.push_back(c);
  }
  for (const int splits : {2, 3, 20}) {  // of the rows too, where those are what a kernel splits
    Case c = shape(1, 300, 270, 2, 1, 64);
    c.num_splits = splits, c.type = Type::bf16, c.causal = splits == 3;
    list.push_back(c);
  }
  for (const char* axes : {"1111", "b111", "1h11", "11q1", "111k", "b11k", "1hqk", "bhq1"}) {
    Case c = shape(2, 33, 70, 4, 2, 16);
    c.bias = axes, c.dbias = true, c.bias_type = Type::bf16;
    list.push_back(c);
    c.dbias = false, c.causal = true, c.mask = axes;
    list.push_back(c);
  }
  Case c = shape(2, 33, 70, 4, 2, 16);
  c.bias = "00qk", c.mask = "b00k";
  list.push_back(c);
}

List make_all() {
  List list;
  add_lengths(list);
  add_long(list);
  add_dims(list);
  add_dims_in_16_bits(list);
  add_types_and_layouts(list);
  add_chunks_in_16_bits(list);
  add_long_bias(list);
  add_heads(list);
  add_options_by_size(list);
  add_options(list);
  add_packed(list);
  add_fills(list);
  add_outputs(list);
  return list;
}

}  // namespace

std::span<const Option> all_options() { return kOptions; }

std::span<const Case> all_cases() {
  static const List list = make_all();
  return list;
}

}  // namespace tilewise::cases
