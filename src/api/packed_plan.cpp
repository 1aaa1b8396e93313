#include "api/packed_plan.h"

#include <cstring>
#include <iterator>
#include <utility>

#include "core/fields.h"

namespace tilewise::api {
namespace {

struct Option {
  const char* name;
  bool (*is_on)(const Problem& p);
};
constexpr Option kOptions[] = {
    {"grad", [](const Problem& p) { return p.pass == Pass::backward; }},
    {"TW_CAUSAL", [](const Problem& p) { return p.causal; }},
    {"TW_TOP_LEFT", [](const Problem& p) { return p.top_left; }},
    {"TW_MASK_TAIL", [](const Problem& p) { return p.mask_tail; }},
    {"TW_DETERMINISTIC", [](const Problem& p) { return p.deterministic; }},
    {"TW_BATCH_INVARIANT", [](const Problem& p) { return p.batch_invariant; }},
    {"TW_GRAD_ACCUMULATE", [](const Problem& p) { return p.accumulate; }},
};

// Axes that may repeat: kernels choose by it.
struct Repeat {
  const char* name;
  Tensor Problem::*tensor;
  int axis;
  int64_t (*size)(const Problem& p);
};
int64_t batch_of(const Problem& p) { return p.batch; }
int64_t heads_of(const Problem& p) { return p.heads; }
int64_t rows_of(const Problem& p) { return p.max_rows; }
int64_t keys_of(const Problem& p) { return p.max_keys; }
int64_t slots_q_of(const Problem& p) { return p.q.shape[0]; }
int64_t slots_k_of(const Problem& p) { return p.k.shape[0]; }
int64_t keys_without_tail(const Problem& p) { return p.mask_tail ? 1 : p.max_keys; }
constexpr Repeat kRepeats[] = {
    {"bias", &Problem::bias, 0, batch_of},
    {"bias", &Problem::bias, 1, heads_of},
    {"bias", &Problem::bias, 2, rows_of},
    {"bias", &Problem::bias, 3, keys_of},
    {"mask", &Problem::mask, 0, batch_of},
    {"mask", &Problem::mask, 1, heads_of},
    {"mask", &Problem::mask, 2, rows_of},
    {"mask", &Problem::mask, 3, keys_without_tail},
    {"alibi_slopes", &Problem::alibi_slopes, 0, batch_of},
    {"key_begin", &Problem::key_begin, 0, slots_q_of},
    {"key_begin", &Problem::key_begin, 1, heads_of},
    {"key_end", &Problem::key_end, 0, slots_q_of},
    {"key_end", &Problem::key_end, 1, heads_of},
    {"q_positions", &Problem::q_positions, 0, slots_q_of},
    {"k_positions", &Problem::k_positions, 0, slots_k_of},
};

// What must be as planned, and what may only be less.
template <class Value>
struct Named {
  const char* name;
  Value (*of)(const Problem& p);
};
constexpr Named<float> kReals[] = {
    {"softcap", [](const Problem& p) { return p.softcap; }},
    {"dropout_p", [](const Problem& p) { return static_cast<float>(p.dropout.threshold) / 65536; }},
};
constexpr Named<int64_t> kNumbers[] = {
    {"device_type", [](const Problem& p) -> int64_t { return p.device_type; }},
    {"device_index", [](const Problem& p) -> int64_t { return p.device_index; }},
    {"threads", [](const Problem& p) -> int64_t { return p.threads; }},
    {"sm_margin", [](const Problem& p) -> int64_t { return p.sm_margin; }},
    {"num_splits", [](const Problem& p) -> int64_t { return p.num_splits; }},
    {"q.shape[2], heads", [](const Problem& p) { return p.heads; }},
    {"k.shape[2], heads", [](const Problem& p) { return p.heads_kv; }},
    {"q.shape[3], head_dim", [](const Problem& p) { return p.head_dim; }},
    {"v.shape[3], head_dim", [](const Problem& p) { return p.value_dim; }},
    {"window_left (-1 = off)", [](const Problem& p) { return p.window_left; }},
    {"window_right (-1 = off)", [](const Problem& p) { return p.window_right; }},
    {"attention_chunk", [](const Problem& p) { return p.attention_chunk; }},
};
constexpr Named<int64_t> kBounds[] = {
    {"B", [](const Problem& p) { return p.batch; }},
    {"the longest query", [](const Problem& p) { return p.max_rows; }},
    {"the longest key", [](const Problem& p) { return p.max_keys; }},
    {"the rows of q", [](const Problem& p) { return p.total_rows; }},
    {"the rows of k", [](const Problem& p) { return p.total_keys; }},
};

// What run compares, and what a kernel needs beside the problem.
struct Packed {
  uint64_t library;  // plans are good for one library in one process
  uint32_t kernel;   // index in the table of its device
  int32_t device_type;
  int32_t workers;
  int64_t fast_memory;
  uint64_t types[2];  // 4 bits a tensor, in the order of fields.h
  uint32_t repeated;  // a bit for each of kRepeats: extent 1
  uint32_t options;   // a bit for each of kOptions
  float reals[std::size(kReals)];
  int64_t numbers[std::size(kNumbers)];
  int64_t bounds[std::size(kBounds)];
};
constexpr size_t kChecksum = std::size(tw_plan{}.private_data) - 1;  // of all that lies before it
static_assert(sizeof(Packed) <= kChecksum * sizeof(uint64_t));
static_assert(std::size(kProblemFields) + std::size(kGradFields) <= 32, "Packed::types");
static_assert(std::size(kRepeats) <= 32, "Packed::repeated");
static_assert(std::size(kOptions) <= 32, "Packed::options");

uint64_t this_library() {
  static const char anchor = 0;  // its address differs from process to process
  return reinterpret_cast<uintptr_t>(&anchor) ^ (uint64_t{TW_VERSION} << 40) ^ 0x54696C6577697365u;
}

uint64_t checksum_of(const tw_plan& packed) {
  uint64_t sum = packed.workspace_bytes;
  for (size_t word = 0; word < kChecksum; ++word) {
    sum = ((sum << 5 | sum >> 59) ^ packed.private_data[word]) * 0x9E3779B97F4A7C15u;
  }
  return sum;
}

void pack_types(const Problem& problem, uint64_t (&types)[2]) {
  uint32_t index = 0;
  const auto add = [&](const Tensor& tensor) {
    types[index / 16] |= static_cast<uint64_t>(tensor.type) << (index % 16 * 4);
    ++index;
  };
  for (const auto& field : kProblemFields) add(problem.*field.tensor);
  for (const auto& field : kGradFields) add(problem.*field.tensor);
}

// f(index) for each of a list, with the index known to the compiler, which so inlines the list's functions.
template <size_t Count, class F>
void each_index(F f) {
  [&]<size_t... Index>(std::index_sequence<Index...>) { (f(std::integral_constant<size_t, Index>()), ...); }
  (std::make_index_sequence<Count>());
}

Packed packed_of(const Problem& p) {
  Packed data{};
  pack_types(p, data.types);
  each_index<std::size(kRepeats)>([&](auto bit) {
    constexpr const Repeat& repeat = kRepeats[bit];
    data.repeated |= static_cast<uint32_t>((p.*repeat.tensor).shape[repeat.axis] == 1) << bit;
  });
  each_index<std::size(kOptions)>(
      [&](auto bit) { data.options |= static_cast<uint32_t>(kOptions[bit].is_on(p)) << bit; });
  each_index<std::size(kReals)>([&](auto i) { data.reals[i] = kReals[i].of(p); });
  each_index<std::size(kNumbers)>([&](auto i) { data.numbers[i] = kNumbers[i].of(p); });
  each_index<std::size(kBounds)>([&](auto i) { data.bounds[i] = kBounds[i].of(p); });
  return data;
}

// ---- Comparing: each step names the first thing that differs.

Status compare_options(const Packed& planned, const Packed& given) {
  for (uint32_t bit = 0; bit < std::size(kOptions); ++bit) {
    const bool was = planned.options >> bit & 1, is = given.options >> bit & 1;
    if (was == is) continue;
    return failure(TW_PLAN_MISMATCH, "%s: planned %s it, now %s", kOptions[bit].name, was ? "with" : "without",
                   is ? "with" : "without");
  }
  return {};
}

Status compare_types(const Packed& planned, const Packed& given) {
  uint32_t index = 0;
  Status status;
  const auto compare = [&](const char* name) {
    const auto type = [&](const Packed& data) {
      return static_cast<Type>(data.types[index / 16] >> (index % 16 * 4) & 15);
    };
    if (status.ok() && type(planned) != type(given)) {
      status =
          failure(TW_PLAN_MISMATCH, "%s.dtype: planned %s, now %s", name, name_of(type(planned)), name_of(type(given)));
    }
    ++index;
  };
  for (const auto& field : kProblemFields) compare(field.name);
  for (const auto& field : kGradFields) compare(field.name);
  return status;
}

Status compare_numbers(const Packed& planned, const Packed& given) {
  for (size_t i = 0; i < std::size(kReals); ++i) {
    const double was = planned.reals[i], is = given.reals[i];
    if (was != is) return failure(TW_PLAN_MISMATCH, "%s: planned %g, now %g", kReals[i].name, was, is);
  }
  for (size_t i = 0; i < std::size(kNumbers); ++i) {
    const int64_t was = planned.numbers[i], is = given.numbers[i];
    if (was != is) return failure(TW_PLAN_MISMATCH, "%s: planned %lld, now %lld", kNumbers[i].name, ll(was), ll(is));
  }
  return {};
}

Status compare_repeats(const Packed& planned, const Packed& given, const Problem& problem) {
  for (uint32_t bit = 0; bit < std::size(kRepeats); ++bit) {
    const auto& [name, tensor, axis, size] = kRepeats[bit];
    const bool was = planned.repeated >> bit & 1, is = given.repeated >> bit & 1;
    if (!(problem.*tensor) || size(problem) <= 1 || was == is) continue;
    return failure(TW_PLAN_MISMATCH, "%s.shape[%d] is %lld: planned as an axis that %s", name, axis,
                   ll((problem.*tensor).shape[axis]), was ? "repeats" : "does not repeat");
  }
  return {};
}

Status compare_bounds(const Packed& planned, const Packed& given) {
  for (size_t i = 0; i < std::size(kBounds); ++i) {
    const int64_t most = planned.bounds[i], is = given.bounds[i];
    if (is > most)
      return failure(TW_PLAN_MISMATCH, "%s: planned for at most %lld, now %lld", kBounds[i].name, ll(most), ll(is));
  }
  return {};
}

Status compare(const Packed& planned, const Problem& problem) {
  const Packed given = packed_of(problem);
  Status status = compare_options(planned, given);
  if (status.ok()) status = compare_types(planned, given);
  if (status.ok()) status = compare_numbers(planned, given);
  if (status.ok()) status = compare_repeats(planned, given, problem);
  if (status.ok()) status = compare_bounds(planned, given);
  return status;
}

// False if the bytes are not those of a plan of this library.
bool read(const tw_plan& packed, Packed& data) {
  std::memcpy(&data, packed.private_data, sizeof data);
  return data.library == this_library() && packed.private_data[kChecksum] == checksum_of(packed) &&
         data.kernel < kernels(data.device_type).size();
}

}  // namespace

void pack(const Problem& problem, const Plan& plan, tw_plan& packed) {
  Packed data = packed_of(problem);
  data.library = this_library();
  data.device_type = problem.device_type;
  while (kernels(data.device_type)[data.kernel] != plan.kernel) ++data.kernel;
  data.workers = plan.settings.workers;
  data.fast_memory = plan.settings.fast_memory;
  std::memset(&packed, 0, sizeof packed);
  packed.workspace_bytes = plan.sizing.workspace_bytes;
  std::memcpy(packed.private_data, &data, sizeof data);
  packed.private_data[kChecksum] = checksum_of(packed);
}

Status unpack(const tw_plan& packed, const Problem& problem, Plan& plan) {
  Packed data;
  if (!read(packed, data)) {
    return failure(TW_PLAN_MISMATCH, "plan was not made by tw_attention_plan of this library in this process");
  }
  if (Status status = compare(data, problem); !status.ok()) return status;
  plan.kernel = kernels(data.device_type)[data.kernel];
  plan.settings.workers = data.workers;
  plan.settings.fast_memory = data.fast_memory;
  Text reason;
  plan.kernel->refuse(problem, reason);
  if (!reason.empty())
    return failure(TW_PLAN_MISMATCH, "%s was planned but refuses: %s", plan.kernel->name, reason.chars);
  plan.sizing = plan.kernel->size(problem, plan.settings);
  if (plan.sizing.workspace_bytes > packed.workspace_bytes) {
    return failure(TW_PLAN_MISMATCH, "this problem needs a workspace of %llu bytes: planned were %llu",
                   static_cast<unsigned long long>(plan.sizing.workspace_bytes),
                   static_cast<unsigned long long>(packed.workspace_bytes));
  }
  return {};
}

const Kernel* kernel_of(const tw_plan& packed) {
  Packed data;
  return read(packed, data) ? kernels(data.device_type)[data.kernel] : nullptr;
}

}  // namespace tilewise::api
