// The keywords of a call, as fields of tw_attention.
#pragma once

#include "binding/array.h"

namespace tilewise::python {

struct Call {
  tw_attention problem;
  int rank_q, rank_k, rank_v;  // 3 if packed without a leading axis: then out has 3 axes as q, and lse 2
  int rank_bias = 0;
};

// Gives the module `keywords`: {keyword: "tensor", "flag", "float", "int", "unsigned" or "window"}. Comes before calls.
void add_keywords(nb::module_& module);

// The value of a keyword. TypeError or ValueError that names it if it is another one. Of int32_t, int64_t, uint64_t and
// float.
template <class Number>
Number number_of(nb::handle value, const char* name);
bool flag_of(nb::handle value, const char* name);

struct Inputs {
  Array q, k, v;
};

// q, k and v, then what `options` holds: a keyword that is None counts as absent. Results are not filled in.
// Raises TypeError for a keyword that no field has.
Call read_call(Arrays& arrays, nb::handle q, nb::handle k, nb::handle v, const nb::dict& options);
Call read_call(Arrays& arrays, const Inputs& inputs, const nb::dict& options);

// Raises ValueError for a call to be run whose dropout has nothing to draw from.
void require_dropout_numbers(const Call& call, const nb::dict& options);

}  // namespace tilewise::python
