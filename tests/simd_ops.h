// The traits of an instruction set and what is built on them, as plain functions on arrays: so that tests, which are
// baseline code, call each instruction set's translation unit and touch no vector themselves.
#pragma once

#include <cstdint>

#include "core/mask.h"
#include "core/problem.h"

namespace tilewise::cpu {

struct ElementOps {
  void (*load)(const void* from, float* to);                               // kLanes
  void (*load_first)(const void* from, int64_t n, float* to);              // writes kLanes
  void (*store)(void* to, const float* from);                              // kLanes; null: cannot be stored
  void (*store_first)(void* to, const float* from, int64_t n);             //
  void (*read_row)(const void* from, int64_t n, float scale, float* to);   //
  void (*write_row)(const float* from, int64_t n, float scale, void* to);  //
};

// A panel's lanes and a run of keys.
struct Panel {
  const Problem& problem;
  const Sequence& sequence;
  const int64_t *heads, *rows;  // [tile_cols]
  int64_t first_key, count;
};

struct SimdOps {
  const char* isa;
  double exp2_error, exp_error_growth;  // the bounds it promises
  int lanes, tile_rows, tile_cols, strip_rows, strip_cols;

  struct Two {
    const char* name;
    void (*apply)(const float* a, const float* b, float* to);  // kLanes
  };
  Two two[15];  // of a mask in memory the lanes that are set hold NaN: all ones, where it comes from here
  void (*fma)(const float* a, const float* b, const float* c, float* to);
  void (*fms)(const float* a, const float* b, const float* c, float* to);
  void (*nearest)(const float* a, float* whole, int32_t* integer);
  void (*select)(const float* mask, const float* yes, const float* no, float* to);
  void (*is_nan)(const float* a, float* to);
  bool (*any)(const float* mask);
  bool (*any_of_none)();
  void (*transpose)(float* square);  // [lanes][lanes]
  ElementOps f32, f16, bf16, boolean;

  void (*product)(float* c, int64_t c_row, const float* init, int64_t init_row, const float* a, int64_t a_row,
                  int64_t a_step, const float* b, int64_t b_row, int64_t count);
  decltype(product) narrow_product;  // null without one
  void (*strip_product)(float* c, int64_t c_row, const float* a, int64_t a_row, const float* b, int64_t b_row,
                        int64_t count);

  void (*exp2)(const float* x, float* to);  // kLanes
  void (*exp)(const float* x, float* to);   // kLanes
  void (*exp2_of_multiple)(float c, const float* x, float* to);
  void (*tanh)(const float* x, float* to);  // kLanes
  void (*rows_to_panel)(const float* rows, int64_t row, int64_t dims, float* panel);
  void (*panel_to_rows)(const float* panel, const float* factor, int64_t dims, float* rows, int64_t row);
  void (*live)(const KeyRange* rows, int64_t first_key, int64_t keys, int64_t key, float* mask);  // [tile_cols]
  void (*order_longest_first)(const int64_t* cost, int64_t count, int64_t* order);

  void (*add_terms)(const float* score, const float* added, float* to);              // kLanes
  void (*softcap)(const Problem& problem, const float* x, float* to, float* slope);  // kLanes
  void (*fill_added)(const Panel& panel, float* added_t);
  void (*fill_kept)(const Panel& panel, float* kept_t);
};

SimdOps portable_ops();
SimdOps sixteen_lanes_ops();
SimdOps avx2_ops();
SimdOps avx512_ops();
SimdOps neon_ops();
SimdOps sve128_ops();
SimdOps sve256_ops();
SimdOps sve512_ops();

}  // namespace tilewise::cpu
