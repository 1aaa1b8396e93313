#include "binding/options.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <variant>

#include "binding/numpy.h"

namespace tilewise::python {
namespace {

struct TensorField {
  static constexpr const char* kKind = "tensor";
  tw_tensor tw_attention::*tensor;
  Place place;
};
template <class Number>
struct NumberField {
  static constexpr const char* kKind = std::is_floating_point_v<Number> ? "float"
                                       : std::is_unsigned_v<Number>     ? "unsigned"
                                                                        : "int";
  Number tw_attention::*number;
  uint32_t flag = 0;  // that says it is set
};
struct Flag {
  static constexpr const char* kKind = "flag";
  uint32_t flag;
};
struct Window {  // (left, right), each a length or None
  static constexpr const char* kKind = "window";
};

using Field = std::variant<TensorField, NumberField<int32_t>, NumberField<int64_t>, NumberField<uint64_t>,
                           NumberField<float>, Flag, Window>;

struct Keyword {
  const char* name;
  Field field;
  PyObject* interned = nullptr;  // the name as Python has it in calls, so that most look-ups compare pointers
};

Keyword tensor(tw_tensor tw_attention::*field, const Place& place) { return {place.name, TensorField{field, place}}; }
template <class Number>
Keyword number(const char* name, Number tw_attention::*field, uint32_t flag = 0) {
  return {name, NumberField<Number>{field, flag}};
}
Keyword flag(const char* name, uint32_t flag) { return {name, Flag{flag}}; }

using A = tw_attention;

std::array kKeywords = {
    flag("causal", TW_CAUSAL),
    number("softmax_scale", &A::softmax_scale, TW_SOFTMAX_SCALE),
    Keyword{"window", Window{}},
    tensor(&A::cu_seqlens_q, {.name = "cu_seqlens_q", .axes = 1}),
    tensor(&A::cu_seqlens_k, {.name = "cu_seqlens_k", .axes = 1}),
    number("max_seqlen_q", &A::max_seqlen_q),
    number("max_seqlen_k", &A::max_seqlen_k),
    tensor(&A::mask, {.name = "mask", .axes = 4}),
    tensor(&A::bias, {.name = "bias", .axes = 4}),
    number("dropout_p", &A::dropout_p),
    number("dropout_seed", &A::dropout_seed),
    number("dropout_offset", &A::dropout_offset),
    tensor(&A::dropout_state, {.name = "dropout_state", .axes = 1}),
    flag("top_left", TW_TOP_LEFT),
    number("window_left", &A::window_left, TW_WINDOW_LEFT),
    number("window_right", &A::window_right, TW_WINDOW_RIGHT),
    number("softcap", &A::softcap),
    tensor(&A::alibi_slopes, {.name = "alibi_slopes", .axes = 2}),
    number("attention_chunk", &A::attention_chunk),
    flag("mask_tail", TW_MASK_TAIL),
    tensor(&A::key_begin, {.name = "key_begin", .axes = 3}),
    tensor(&A::key_end, {.name = "key_end", .axes = 3}),
    tensor(&A::q_positions, {.name = "q_positions", .axes = 2}),
    tensor(&A::k_positions, {.name = "k_positions", .axes = 2}),
    tensor(&A::sink, {.name = "sink", .axes = 1}),
    tensor(&A::seqused_q, {.name = "seqused_q", .axes = 1}),
    tensor(&A::seqused_k, {.name = "seqused_k", .axes = 1}),
    tensor(&A::leftpad_k, {.name = "leftpad_k", .axes = 1}),
    tensor(&A::batch_index_k, {.name = "batch_index_k", .axes = 1}),
    tensor(&A::prior_out, tokens("prior_out")),
    tensor(&A::prior_lse, logarithms("prior_lse")),
    number("threads", &A::threads),
    number("num_splits", &A::num_splits),
    flag("deterministic", TW_DETERMINISTIC),
    flag("batch_invariant", TW_BATCH_INVARIANT),
    tensor(&A::block_table, {.name = "block_table", .axes = 2, .least_axes = 2}),
    tensor(&A::q_scale, {.name = "q_scale", .axes = 4, .least_axes = 4, .has_heads = true}),
    tensor(&A::k_scale, {.name = "k_scale", .axes = 4, .least_axes = 4, .has_heads = true}),
    tensor(&A::v_scale, {.name = "v_scale", .axes = 4, .least_axes = 4, .has_heads = true}),
    flag("scale_per_sequence", TW_SCALE_PER_SEQUENCE),
    flag("v_in_k", TW_V_IN_K),
    number("sm_margin", &A::sm_margin),
};

const Keyword& keyword_of(PyObject* name) {
  for (const Keyword& keyword : kKeywords) {
    if (keyword.interned == name) return keyword;
  }
  for (const Keyword& keyword : kKeywords) {
    if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, keyword.name) == 0) return keyword;
  }
  const nb::object message = nb::module_::import_("tilewise._names").attr("unknown_keyword")(nb::handle(name));
  raise(PyExc_TypeError, "%U", message.ptr());
}

// The error at hand was met in reading a number: TypeError, or ValueError for one that is too large. What has nothing
// to do with the value, such as an interrupt, goes on as it is.
[[noreturn]] void raise_no_number(nb::handle value, const char* name, const char* what) {
  if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError)) throw nb::python_error();
  PyObject* kind = PyErr_ExceptionMatches(PyExc_OverflowError) ? PyExc_ValueError : PyExc_TypeError;
  PyErr_Clear();
  raise(kind, "%s is %U; it takes %s", name, shown(value).ptr(), what);
}

// The value of a keyword that is given, or null.
PyObject* given(const nb::dict& options, const char* name) {
  PyObject* value = PyDict_GetItemString(options.ptr(), name);
  return value == Py_None ? nullptr : value;
}

// Keywords that say the same would depend on the order in which they are written.
void refuse_two_windows(const nb::dict& options) {
  PyObject* window = given(options, "window");
  if (!window) return;
  for (const char* side : {"window_left", "window_right"}) {
    PyObject* length = given(options, side);
    if (!length) continue;
    raise(PyExc_ValueError, "window is %U and %s is %U: give one of them", shown(window).ptr(), side,
          shown(length).ptr());
  }
}

// Sets what one keyword says.
struct Setter {
  Arrays& arrays;
  Call& call;
  const char* name;
  PyObject* value;

  void operator()(const TensorField& field) const {
    const Array array = arrays.open(value, name);
    call.problem.*field.tensor = arrays.fit(array, field.place);
    if (field.tensor == &A::bias) call.rank_bias = array.rank;
  }

  template <class Number>
  void operator()(const NumberField<Number>& field) const {
    call.problem.*field.number = number_of<Number>(value, name);
    call.problem.flags |= field.flag;
  }

  void operator()(const Flag& field) const {
    if (flag_of(value, name)) call.problem.flags |= field.flag;
  }

  void operator()(const Window&) const {
    if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 2) {
      raise(PyExc_TypeError, "%s is %U; it takes (left, right), None on a side without limit", name,
            shown(value).ptr());
    }
    side(PyTuple_GET_ITEM(value, 0), {&A::window_left, TW_WINDOW_LEFT});
    side(PyTuple_GET_ITEM(value, 1), {&A::window_right, TW_WINDOW_RIGHT});
  }

 private:
  void side(PyObject* length, const NumberField<int64_t>& field) const {
    if (length != Py_None) Setter{arrays, call, name, length}(field);
  }
};

}  // namespace

template <class Number>
Number number_of(nb::handle value, const char* name) {
  constexpr const char* kInteger = "an integer of its range";
  if constexpr (std::is_floating_point_v<Number>) {
    const double number = PyFloat_AsDouble(value.ptr());
    if (number == -1 && PyErr_Occurred()) raise_no_number(value, name, "a number");
    if (std::isfinite(number) && std::abs(number) > std::numeric_limits<Number>::max()) {
      raise(PyExc_ValueError, "%s is %U; it takes a number in the range of float32", name, shown(value).ptr());
    }
    return static_cast<Number>(number);
  } else if constexpr (std::is_unsigned_v<Number>) {
    const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
    if (!index.is_valid()) raise_no_number(value, name, kInteger);
    const auto number = PyLong_AsUnsignedLongLong(index.ptr());
    if (number == static_cast<Number>(-1) && PyErr_Occurred()) raise_no_number(value, name, kInteger);
    return number;
  } else {
    const int64_t number = PyNumber_AsSsize_t(value.ptr(), PyExc_OverflowError);
    if (number == -1 && PyErr_Occurred()) raise_no_number(value, name, kInteger);
    if (static_cast<Number>(number) != number) {
      raise(PyExc_ValueError, "%s is %U; it takes 32 bits", name, shown(value).ptr());
    }
    return static_cast<Number>(number);
  }
}
template int32_t number_of(nb::handle value, const char* name);
template int64_t number_of(nb::handle value, const char* name);
template uint64_t number_of(nb::handle value, const char* name);
template float number_of(nb::handle value, const char* name);

bool flag_of(nb::handle value, const char* name) {
  if (PyBool_Check(value.ptr())) return value.ptr() == Py_True;
  if (numpy::is_bool(value)) return PyObject_IsTrue(value.ptr()) == 1;
  raise(PyExc_TypeError, "%s is %U; it takes True or False", name, shown(value).ptr());
}

void add_keywords(nb::module_& module) {
  nb::dict kinds;
  for (Keyword& keyword : kKeywords) {
    keyword.interned = PyUnicode_InternFromString(keyword.name);
    if (!keyword.interned) throw nb::python_error();
    kinds[keyword.name] = std::visit([](const auto& field) { return field.kKind; }, keyword.field);
  }
  module.attr("keywords") = kinds;
}

Call read_call(Arrays& arrays, nb::handle q, nb::handle k, nb::handle v, const nb::dict& options) {
  return read_call(arrays, {arrays.open(q, "q"), arrays.open(k, "k"), arrays.open(v, "v")}, options);
}

Call read_call(Arrays& arrays, const Inputs& inputs, const nb::dict& options) {
  const auto& [queries, keys, values] = inputs;
  Call call;
  tw_attention& problem = call.problem;
  TW_INIT(problem);
  problem.q = arrays.fit(queries, tokens("q"));
  problem.k = arrays.fit(keys, tokens("k"));
  problem.v = arrays.fit(values, tokens("v"));
  call.rank_q = queries.rank, call.rank_k = keys.rank, call.rank_v = values.rank;

  PyObject *name = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(options.ptr(), &at, &name, &value);) {
    const nb::object kept_name = nb::borrow(name), kept = nb::borrow(value);  // an array's code may change the dict
    const Keyword& keyword = keyword_of(name);
    if (value != Py_None) std::visit(Setter{arrays, call, keyword.name, value}, keyword.field);
  }
  if (problem.flags & (TW_WINDOW_LEFT | TW_WINDOW_RIGHT)) refuse_two_windows(options);
  problem.device_type = arrays.device().type;
  problem.device_index = arrays.device().index;
  const auto require_offsets = [](const Array& array, const char* name, const tw_tensor& offsets) {
    if (array.rank != 3 || offsets.dtype != TW_NONE) return;
    raise(PyExc_ValueError, "%s has 3 axes, so it is packed, (total, heads, head_dim), and needs cu_seqlens_%s", name,
          name);
  };
  require_offsets(queries, "q", problem.cu_seqlens_q);
  require_offsets(keys, "k", problem.cu_seqlens_k);
  return call;
}

void require_dropout_numbers(const Call& call, const nb::dict& options) {
  const float p = call.problem.dropout_p;
  if (!(p > 0 && p < 1)) return;
  for (const char* name : {"dropout_seed", "dropout_offset", "dropout_state"}) {
    if (given(options, name)) return;
  }
  raise(PyExc_ValueError,
        "dropout_p is %U without dropout_seed, dropout_offset and dropout_state: the mask follows from these numbers "
        "alone, and every call would have the same; give one of them, new for each call",
        shown(given(options, "dropout_p")).ptr());
}

}  // namespace tilewise::python
