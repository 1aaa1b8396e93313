#include "binding/options.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <variant>

namespace tilewise::python {
namespace {

struct TensorField {
  static constexpr const char* kKind = "tensor";
  tw_tensor tw_attention::*tensor;
  int axes, least_axes;
  bool has_heads = false;
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

using A = tw_attention;
using I32 = NumberField<int32_t>;
using I64 = NumberField<int64_t>;
using U64 = NumberField<uint64_t>;
using F32 = NumberField<float>;

std::array kKeywords = {
    Keyword{"causal", Flag{TW_CAUSAL}},
    Keyword{"softmax_scale", F32{&A::softmax_scale, TW_SOFTMAX_SCALE}},
    Keyword{"window", Window{}},
    Keyword{"cu_seqlens_q", TensorField{&A::cu_seqlens_q, 1, 1}},
    Keyword{"cu_seqlens_k", TensorField{&A::cu_seqlens_k, 1, 1}},
    Keyword{"max_seqlen_q", I64{&A::max_seqlen_q}},
    Keyword{"max_seqlen_k", I64{&A::max_seqlen_k}},
    Keyword{"mask", TensorField{&A::mask, 4, 1}},
    Keyword{"bias", TensorField{&A::bias, 4, 1}},
    Keyword{"dropout_p", F32{&A::dropout_p}},
    Keyword{"dropout_seed", U64{&A::dropout_seed}},
    Keyword{"dropout_offset", U64{&A::dropout_offset}},
    Keyword{"dropout_state", TensorField{&A::dropout_state, 1, 1}},
    Keyword{"top_left", Flag{TW_TOP_LEFT}},
    Keyword{"window_left", I64{&A::window_left, TW_WINDOW_LEFT}},
    Keyword{"window_right", I64{&A::window_right, TW_WINDOW_RIGHT}},
    Keyword{"softcap", F32{&A::softcap}},
    Keyword{"alibi_slopes", TensorField{&A::alibi_slopes, 2, 1}},
    Keyword{"attention_chunk", I64{&A::attention_chunk}},
    Keyword{"mask_tail", Flag{TW_MASK_TAIL}},
    Keyword{"key_begin", TensorField{&A::key_begin, 3, 1}},
    Keyword{"key_end", TensorField{&A::key_end, 3, 1}},
    Keyword{"q_positions", TensorField{&A::q_positions, 2, 1}},
    Keyword{"k_positions", TensorField{&A::k_positions, 2, 1}},
    Keyword{"sink", TensorField{&A::sink, 1, 1}},
    Keyword{"seqused_q", TensorField{&A::seqused_q, 1, 1}},
    Keyword{"seqused_k", TensorField{&A::seqused_k, 1, 1}},
    Keyword{"leftpad_k", TensorField{&A::leftpad_k, 1, 1}},
    Keyword{"batch_index_k", TensorField{&A::batch_index_k, 1, 1}},
    Keyword{"prior_out", TensorField{&A::prior_out, 4, 3, true}},
    Keyword{"prior_lse", TensorField{&A::prior_lse, 3, 2}},
    Keyword{"threads", I32{&A::threads}},
    Keyword{"num_splits", I32{&A::num_splits}},
    Keyword{"deterministic", Flag{TW_DETERMINISTIC}},
    Keyword{"batch_invariant", Flag{TW_BATCH_INVARIANT}},
    Keyword{"block_table", TensorField{&A::block_table, 2, 2}},
    Keyword{"q_scale", TensorField{&A::q_scale, 4, 4, true}},
    Keyword{"k_scale", TensorField{&A::k_scale, 4, 4, true}},
    Keyword{"v_scale", TensorField{&A::v_scale, 4, 4, true}},
    Keyword{"scale_per_sequence", Flag{TW_SCALE_PER_SEQUENCE}},
    Keyword{"v_in_k", Flag{TW_V_IN_K}},
    Keyword{"sm_margin", I32{&A::sm_margin}},
};

const Keyword& keyword_of(PyObject* name) {
  static const bool interned = [] {
    for (Keyword& keyword : kKeywords) keyword.interned = PyUnicode_InternFromString(keyword.name);
    return true;
  }();
  (void)interned;
  for (const Keyword& keyword : kKeywords) {
    if (keyword.interned == name) return keyword;
  }
  for (const Keyword& keyword : kKeywords) {
    if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, keyword.name) == 0) return keyword;
  }
  raise(PyExc_TypeError, "attention has no keyword %R", name);
}

// The error at hand was met in reading a number: TypeError, or ValueError for one that is too large. What has nothing
// to do with the value, such as an interrupt, goes on as it is.
[[noreturn]] void raise_no_number(nb::handle value, const char* name, const char* what) {
  if (!PyErr_ExceptionMatches(PyExc_Exception) || PyErr_ExceptionMatches(PyExc_MemoryError)) throw nb::python_error();
  PyObject* kind = PyErr_ExceptionMatches(PyExc_OverflowError) ? PyExc_ValueError : PyExc_TypeError;
  PyErr_Clear();
  raise(kind, "%s is %U; it takes %s", name, shown(value).ptr(), what);
}

// Sets what one keyword says.
struct Setter {
  Arrays& arrays;
  tw_attention& problem;
  const char* name;
  PyObject* value;

  void operator()(const TensorField& field) const {
    problem.*field.tensor = arrays.read(value, {name, field.axes, field.least_axes, field.has_heads, false});
  }

  template <class Number>
  void operator()(const NumberField<Number>& field) const {
    problem.*field.number = number_of<Number>(value, name);
    problem.flags |= field.flag;
  }

  void operator()(const Flag& field) const {
    if (flag_of(value, name)) problem.flags |= field.flag;
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
    if (length != Py_None) Setter{arrays, problem, name, length}(field);
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
  if (!PyBool_Check(value.ptr())) {
    raise(PyExc_TypeError, "%s is %U; it takes True or False", name, shown(value).ptr());
  }
  return value.ptr() == Py_True;
}

nb::dict keywords() {
  nb::dict kinds;
  for (const Keyword& keyword : kKeywords) {
    kinds[keyword.name] = std::visit([](const auto& field) { return field.kKind; }, keyword.field);
  }
  return kinds;
}

Call read_call(Arrays& arrays, nb::handle q, nb::handle k, nb::handle v, nb::dict options) {
  Call call;
  tw_attention& problem = call.problem;
  TW_INIT(problem);
  const Array queries = arrays.open(q, "q"), keys = arrays.open(k, "k");
  problem.q = arrays.fit(queries, {"q", 4, 3, true, false});
  problem.k = arrays.fit(keys, {"k", 4, 3, true, false});
  problem.v = arrays.read(v, {"v", 4, 3, true, false});

  PyObject *name = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(options.ptr(), &at, &name, &value);) {
    const nb::object kept_name = nb::borrow(name), kept = nb::borrow(value);  // an array's code may change the dict
    const Keyword& keyword = keyword_of(name);
    if (value != Py_None) std::visit(Setter{arrays, problem, keyword.name, value}, keyword.field);
  }
  problem.device_type = arrays.device().type;
  problem.device_index = arrays.device().index;
  const auto require_offsets = [](const Array& array, const char* name, const tw_tensor& offsets) {
    if (array.rank != 3 || offsets.dtype != TW_NONE) return;
    raise(PyExc_ValueError, "%s has 3 axes, so it is packed, (total, heads, head_dim), and needs cu_seqlens_%s", name,
          name);
  };
  require_offsets(queries, "q", problem.cu_seqlens_q);
  require_offsets(keys, "k", problem.cu_seqlens_k);
  call.rank = queries.rank;
  return call;
}

}  // namespace tilewise::python
