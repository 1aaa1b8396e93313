// Answers about a call that is not made: explain, info and traffic.
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "binding/calls.h"
#include "binding/results.h"
#include "core/device.h"
#include "traffic/traffic.h"

namespace tilewise::python {
namespace {

// A call with all its results, in memory that is reserved but never touched: with memory for every tensor the library
// looks at lengths and masks too.
class Question {
 public:
  Question(nb::handle q, nb::handle k, nb::handle v, nb::handle is_backward, bool heads_first, const nb::dict& options)
      : arrays_(heads_first, nb::none()),
        problem_(read_call(arrays_, q, k, v, options).problem),
        is_backward_(flag_of(is_backward, "backward")) {
    TW_INIT(grad_);
    problem_.out = reserved(out_like(problem_, dtype_of_results(problem_)));
    problem_.lse = reserved(lse_like(problem_));
    if (!is_backward_) return;
    grad_.dout = reserved(problem_.out);
    grad_.dq = reserved(problem_.q), grad_.dk = reserved(problem_.k), grad_.dv = reserved(problem_.v);
  }

  const tw_attention& problem() const { return problem_; }
  const tw_attention_grad* grad() const { return is_backward_ ? &grad_ : nullptr; }
  bool has_memory() const { return problem_.q.data && problem_.k.data && problem_.v.data && all_reserved_; }

 private:
  // Row-major memory for a tensor of this shape.
  tw_tensor reserved(const tw_tensor& like) {
    const int64_t* n = like.shape;
    const double bytes = static_cast<double>(n[0]) * static_cast<double>(n[1]) * static_cast<double>(n[2]) *
                         static_cast<double>(n[3]) * 4;
    memory_.emplace_back(bytes < 1e15 ? std::malloc(static_cast<size_t>(bytes) + 1) : nullptr, std::free);
    all_reserved_ = all_reserved_ && memory_.back();
    return tw_tensor_of(memory_.back().get(), like.dtype, n[0], n[1], n[2], n[3]);
  }

  Arrays arrays_;
  tw_attention problem_;
  tw_attention_grad grad_{};
  bool is_backward_;
  bool all_reserved_ = true;
  std::vector<std::unique_ptr<void, void (*)(void*)>> memory_;
};

// An answer of a function that writes as snprintf does.
template <class Answer>
std::string text_of(Answer answer) {
  std::string text(4096, '\0');
  const size_t length = answer(text.data(), text.size());
  if (length >= text.size()) {
    text.resize(length + 1);
    answer(text.data(), text.size());
  }
  text.resize(length);
  return text;
}

nb::object numbers_of(const std::optional<Traffic>& traffic) {
  if (!traffic) return nb::none();
  nb::dict numbers;
  numbers["flops"] = traffic->flops;
  numbers["bytes_read"] = traffic->bytes_read;
  numbers["bytes_written"] = traffic->bytes_written;
  return numbers;
}

Problem checked_problem(const Question& question) {
  Problem problem;
  Status status = make_problem(question.problem(), question.grad(), question.has_memory(), problem);
  if (status.ok() && question.has_memory() && problem.device_type == TW_CPU) status = check_lengths(problem);
  check(status.code, status.message.chars);
  return problem;
}

}  // namespace

std::string explain(nb::handle q, nb::handle k, nb::handle v, nb::handle is_backward, bool heads_first,
                    const nb::dict& options) {
  const Question question(q, k, v, is_backward, heads_first, options);
  return text_of([&](char* text, size_t capacity) {
    return tw_attention_explain(&question.problem(), question.grad(), text, capacity);
  });
}

std::string info() { return text_of(tw_info); }

nb::dict traffic(nb::handle q, nb::handle k, nb::handle v, nb::handle is_backward, bool heads_first,
                 nb::handle fast_memory, const nb::dict& options) {
  const Question question(q, k, v, is_backward, heads_first, options);
  const Problem problem = checked_problem(question);
  const auto given = number_of<int64_t>(fast_memory, "fast_memory");
  if (given < 0) raise(PyExc_ValueError, "fast_memory is %lld: must not be negative", static_cast<long long>(given));
  const int64_t elements = given > 0 ? given : this_cpu().l2_bytes / 4;
  nb::dict answer;
  answer["standard"] = numbers_of(traffic_of(Algorithm::standard, problem, elements));
  answer["v1"] = numbers_of(traffic_of(Algorithm::v1, problem, elements));
  answer["v2"] = numbers_of(traffic_of(Algorithm::v2, problem, elements));
  return answer;
}

}  // namespace tilewise::python
