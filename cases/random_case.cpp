// Random legal problems. Sizes crowd around the edges of tiles, features come alone and together, and all stays small.
#include <algorithm>
#include <cmath>

#include "cases/case.h"
#include "cases/random.h"

namespace tilewise::cases {
namespace {

constexpr double kMostWork = 2e7;                                                 // multiply-adds of one product
constexpr int64_t kNear[] = {4, 8, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512};  // where tiles and blocks end

int64_t random_length(Random& random, int64_t most) {
  if (random.chance(0.04)) return 0;
  if (random.chance(0.3)) return random.between(1, std::min<int64_t>(most, 9));
  if (random.chance(0.5)) return random.between(1, most);
  const int64_t near = kNear[random.below(std::size(kNear))] + random.between(-1, 1);
  return std::min(near, most);
}

int64_t random_dim(Random& random) {
  if (random.chance(0.6)) return random.pick<int64_t>({16, 32, 64, 64, 80, 96, 128});
  if (random.chance(0.7)) return random.between(1, 72);
  return random.pick<int64_t>({1, 2, 127, 129, 160, 192, 255, 256, 320, 512});
}

Axes random_axes(Random& random, const char* whole, bool expanded) {
  Axes axes = whole;
  for (char& axis : axes)
    if (random.chance(0.3)) axis = expanded && random.chance(0.3) ? '0' : '1';
  return axes;
}

std::vector<int64_t> random_lengths(Random& random, int64_t batch, int64_t most) {
  std::vector<int64_t> lengths;
  for (int64_t b = 0; b < batch; ++b) lengths.push_back(random.between(0, most));
  return lengths;
}

int64_t longest(const std::vector<int64_t>& lengths) { return *std::max_element(lengths.begin(), lengths.end()); }

void choose_sizes(Random& random, Case& c) {
  c.type = random.pick({Type::f32, Type::f32, Type::f16, Type::bf16});
  c.layout = static_cast<Layout>(random.below(4));
  c.mixed_layouts = random.chance(0.4);
  c.fp32_out = c.type != Type::f32 && random.chance(0.2);
  c.fp32_gradients = c.type != Type::f32 && random.chance(0.2);
  c.batch = random.chance(0.02) ? 0 : random.pick<int64_t>({1, 1, 2, 2, 3, 5});
  c.heads_kv = random.pick<int64_t>({1, 1, 2, 3});
  c.heads = c.heads_kv * random.pick<int64_t>({1, 1, 2, 3, 7});
  c.head_dim = random_dim(random);
  c.value_dim = random.chance(0.6) ? c.head_dim : random_dim(random);
  c.seqlen_q = random_length(random, 520);
  c.seqlen_k = random.chance(0.3) ? c.seqlen_q : random_length(random, 520);
  const auto work = [&c] {
    const int64_t pairs = c.batch * c.heads * c.seqlen_q * c.seqlen_k;
    return static_cast<double>(pairs) * static_cast<double>(c.head_dim + c.value_dim);
  };
  while (work() > kMostWork) (c.seqlen_q > c.seqlen_k ? c.seqlen_q : c.seqlen_k) *= 0.7;
}

void choose_lengths(Random& random, Case& c) {
  if (c.batch == 0) return;
  const bool packed_q = random.chance(0.25), packed_k = packed_q ? random.chance(0.8) : random.chance(0.05);
  if (packed_q) c.packed_q = random_lengths(random, c.batch, c.seqlen_q);
  if (packed_k) c.packed_k = random_lengths(random, c.batch, c.seqlen_k);
  if (packed_q) c.seqlen_q = longest(c.packed_q);
  if (packed_k) c.seqlen_k = longest(c.packed_k);
  c.spare = (packed_q || packed_k) && random.chance(0.4) ? random.between(1, 3) : 0;
  c.max_seqlen = packed_q || packed_k || random.chance(0.1);
  if (random.chance(0.2)) c.used_q = random_lengths(random, c.batch, c.seqlen_q);
  if (random.chance(0.25)) c.used_k = random_lengths(random, c.batch, c.seqlen_k);
  for (int64_t b = 0; b < c.batch; ++b) {
    if (!c.used_q.empty()) c.used_q[b] = std::min(c.used_q[b], c.row_slot(b));
    if (!c.used_k.empty()) c.used_k[b] = std::min(c.used_k[b], c.key_slot(b));
  }
  if (random.chance(0.12)) {
    for (int64_t b = 0; b < c.batch; ++b) c.left_pad.push_back(random.between(0, c.keys(b)));
  }
  if (!packed_k && random.chance(0.08)) {
    for (int64_t b = 0; b < c.batch; ++b) c.batch_index.push_back(random.below(c.batch + 1));
    c.backward = false;  // no kernel adds up the gradients of a row of k that sequences share
  }
}

void choose_masks(Random& random, Case& c) {
  c.causal = random.chance(0.4);
  if (random.chance(0.2)) c.window_left = random.pick<int64_t>({0, 1, 7, 33, 100});
  if (random.chance(0.15)) c.window_right = random.pick<int64_t>({0, 1, 7, 33, 100});
  if (random.chance(0.1)) c.chunk = random.pick<int64_t>({1, 5, 32, 100});
  if (random.chance(0.15)) {
    c.q_positions = random_axes(random, "bq", false), c.q_positions[1] = 'q';
    if (random.chance(0.7)) c.k_positions = random_axes(random, "bk", false), c.k_positions[1] = 'k';
  }
  c.top_left = c.q_positions.empty() && random.chance(0.3);
  if (random.chance(0.12)) c.key_begin = random_axes(random, "bhq", false), c.key_begin[2] = 'q';
  if (random.chance(0.12)) c.key_end = random_axes(random, "bhq", false), c.key_end[2] = 'q';
  if (random.chance(0.15)) c.mask = random_axes(random, "bhqk", true);
  const bool tail = !c.mask.empty() && c.mask[3] == 'k' && c.seqlen_k > 0 && random.chance(0.3);
  if (tail) c.mask_tail = random.between(1, std::min<int64_t>(c.seqlen_k, 20));
}

void choose_scores(Random& random, Case& c) {
  if (random.chance(0.3)) c.scale = random.pick({0.0f, -0.2f, 0.05f, 0.3f, 1.0f, 4.0f});
  if (random.chance(0.15)) c.softcap = random.pick({0.5f, 5.0f, 30.0f});
  if (random.chance(0.2)) {
    c.bias = random_axes(random, "bhqk", true);
    c.bias_type = random.pick({Type::f32, c.type, Type::f16, Type::bf16});
    c.infinite_bias = random.chance(0.3);
  }
  if (random.chance(0.15)) c.alibi = random.pick({"bh", "1h"});
  c.sink = random.chance(0.2);
  if (random.chance(0.2)) c.dropout_p = random.pick({0.01f, 0.1f, 0.5f, 0.9f});
}

void choose_passes(Random& random, Case& c) {
  c.lse = random.chance(0.9);
  c.prior = random.chance(0.1);
  if (c.prior) c.fp32_out = c.type != Type::f32, c.lse = true;
  c.dlse = random.chance(0.3);
  c.accumulate = random.chance(0.15);
  if (c.accumulate) c.fp32_gradients = c.type != Type::f32;
  c.dbias = !c.bias.empty() && c.bias.find('0') == Axes::npos && random.chance(0.7);
  c.dsink = c.sink && random.chance(0.8);
  if (random.chance(0.15)) c.dq = false;
  if (random.chance(0.15)) c.dk = false;
  if (random.chance(0.15)) c.dv = false;
  if (!c.dq && !c.dk && !c.dv) c.dq = true;
  c.deterministic = random.chance(0.3), c.batch_invariant = random.chance(0.2);
  c.threads = random.pick({0, 0, 1, 2, 3});
  c.num_splits = random.pick({0, 0, 0, 1, 3});
}

}  // namespace

Case random_case(uint64_t seed, int64_t index) {
  Random random(seed ^ (static_cast<uint64_t>(index) + 1) * 0xD1342543DE82EF95);
  Case c;
  c.seed = random.next();
  choose_sizes(random, c);
  choose_lengths(random, c);
  choose_masks(random, c);
  choose_scores(random, c);
  choose_passes(random, c);
  if (random.chance(0.2)) {
    c.fill = random.pick({Fill::zero_query, Fill::ones_value, Fill::one_hot_value, Fill::equal_keys});
  } else if (c.type == Type::f32 && random.chance(0.15)) {
    c.fill = random.pick({Fill::late_maximum, Fill::early_maximum, Fill::rising, Fill::negative});
  }
  return c;
}

}  // namespace tilewise::cases
