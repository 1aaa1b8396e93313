// The rules that arguments must keep, by subject. Only make_problem calls them.
#pragma once

#include "core/problem.h"

namespace tilewise {

// Remembers the first rule that was broken; later ones are not looked at.
class Rules {
 public:
  bool kept() const { return first_broken_.ok(); }
  const Status& first_broken() const { return first_broken_; }

  // Broken: TW_INVALID_ARGUMENT. The message names the argument, its value and the rule.
  [[gnu::format(printf, 3, 4)]] void require(bool kept, const char* pattern, ...);
  // Broken: TW_UNSUPPORTED, what is legal but not served by any kernel of this build.
  [[gnu::format(printf, 3, 4)]] void serve(bool served, const char* pattern, ...);

 private:
  Status first_broken_;
};

// Flags, numbers and reserved fields, and which of them go together (rules_values.cpp).
void check_values(const tw_attention& given, const tw_attention_grad* grad, Rules& rules);

// Each tensor by itself: type, extents, strides (rules_tensors.cpp).
void check_tensors(const tw_attention& given, const tw_attention_grad* grad, Rules& rules);

// How the tensors of a problem fit together: presence, types, extents (rules_types.cpp, rules_shapes.cpp).
void check_types(const Problem& problem, Rules& rules);
void check_shapes(const tw_attention& given, const Problem& problem, Rules& rules);

// Data pointers: there, aligned, outputs apart from everything else (rules_memory.cpp).
void check_memory(const Problem& problem, Rules& rules);

}  // namespace tilewise
