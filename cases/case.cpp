#include "cases/case.h"

#include <sstream>

namespace tilewise::cases {
namespace {

// Words with a blank between them.
class Words {
 public:
  template <class... Parts>
  void add(const Parts&... parts) {
    if (text_.tellp() > 0) text_ << ' ';
    (text_ << ... << parts);
  }
  template <class... Parts>
  void add_if(bool condition, const Parts&... parts) {
    if (condition) add(parts...);
  }
  void add_list(const char* name, const std::vector<int64_t>& numbers) {
    if (numbers.empty()) return;
    add(name, '=', numbers[0]);
    for (size_t i = 1; i < numbers.size(); ++i) text_ << ',' << numbers[i];
  }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
};

void add_sizes(const Case& c, Words& words) {
  words.add('B', c.batch, " Sq", c.seqlen_q, " Sk", c.seqlen_k, " H", c.heads, '/', c.heads_kv, " D", c.head_dim);
  words.add_if(c.value_dim != c.head_dim, "Dv", c.value_dim);
  words.add(name_of(c.type));
  words.add_if(c.layout != Layout::rows_outside || c.mixed_layouts, c.mixed_layouts ? "mixed-" : "", name_of(c.layout));
  words.add_if(c.fp32_out, "fp32-out");
  words.add_if(c.fp32_gradients, "fp32-gradients");
}

void add_lengths(const Case& c, Words& words) {
  words.add_list("packed-q", c.packed_q);
  words.add_list("packed-k", c.packed_k);
  words.add_list("seqused-q", c.used_q);
  words.add_list("seqused-k", c.used_k);
  words.add_list("leftpad", c.left_pad);
  words.add_list("batch-index", c.batch_index);
  words.add_if(c.spare > 0, "spare=", c.spare);
  words.add_if(c.max_seqlen, "max-seqlen");
}

void add_scores(const Case& c, Words& words) {
  if (c.scale) words.add("scale=", *c.scale);
  words.add_if(c.softcap > 0, "softcap=", c.softcap);
  words.add_if(!c.bias.empty(), "bias=", c.bias, ':', name_of(c.bias_type), c.infinite_bias ? ":inf" : "");
  words.add_if(!c.alibi.empty(), "alibi=", c.alibi);
  words.add_if(c.sink, "sink");
  words.add_if(c.dropout_p > 0, "dropout=", c.dropout_p);
}

void add_masks(const Case& c, Words& words) {
  words.add_if(c.causal, "causal");
  words.add_if(c.top_left, "top-left");
  words.add_if(c.window_left != kUnbounded, "left=", c.window_left);
  words.add_if(c.window_right != kUnbounded, "right=", c.window_right);
  words.add_if(c.chunk > 0, "chunk=", c.chunk);
  words.add_if(!c.mask.empty(), "mask=", c.mask);
  words.add_if(c.mask_tail > 0, "mask-tail=", c.mask_tail);
  words.add_if(!c.key_begin.empty(), "key-begin=", c.key_begin);
  words.add_if(!c.key_end.empty(), "key-end=", c.key_end);
  words.add_if(!c.q_positions.empty(), "q-positions=", c.q_positions);
  words.add_if(!c.k_positions.empty(), "k-positions=", c.k_positions);
}

void add_passes(const Case& c, Words& words) {
  words.add_if(!c.lse, "no-lse");
  words.add_if(c.prior, "prior");
  words.add_if(!c.backward, "forward-only");
  words.add_if(c.accumulate, "accumulate");
  words.add_if(c.dlse, "dlse");
  words.add_if(c.dbias, "dbias");
  words.add_if(c.dsink, "dsink");
  words.add_if(!c.dq, "no-dq");
  words.add_if(!c.dk, "no-dk");
  words.add_if(!c.dv, "no-dv");
  words.add_if(c.deterministic, "deterministic");
  words.add_if(c.batch_invariant, "batch-invariant");
  words.add_if(c.threads > 0, "threads=", c.threads);
  words.add_if(c.num_splits > 0, "splits=", c.num_splits);
}

}  // namespace

const char* name_of(Fill fill) {
  switch (fill) {
    case Fill::normal:
      return "normal";
    case Fill::zero_query:
      return "zero-query";
    case Fill::ones_value:
      return "ones-value";
    case Fill::one_hot_value:
      return "one-hot-value";
    case Fill::equal_keys:
      return "equal-keys";
    case Fill::lowest:
      return "lowest";
    case Fill::negative:
      return "negative";
    case Fill::late_maximum:
      return "late-maximum";
    case Fill::early_maximum:
      return "early-maximum";
    case Fill::rising:
      return "rising";
    case Fill::falling:
      return "falling";
    case Fill::huge:
      return "huge";
  }
  return "";
}

std::string Case::name() const {
  Words words;
  add_sizes(*this, words);
  add_lengths(*this, words);
  add_scores(*this, words);
  add_masks(*this, words);
  add_passes(*this, words);
  words.add_if(fill != Fill::normal, name_of(fill));
  words.add_if(seed != 1, "seed=", seed);
  return words.text();
}

}  // namespace tilewise::cases
