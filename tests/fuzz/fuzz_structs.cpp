// Bytes as the structs of the C interface: a legal call of small extents with options chosen at random, then edits at
// any place of any struct. Whatever comes of it is planned, explained, run and merged in memory that just suffices.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/kernel.h"
#include "fuzz/call_memory.h"
#include "tilewise/tilewise.h"

namespace tilewise::fuzz {
namespace {

constexpr int64_t kB = 2, kSq = 3, kSk = 5, kH = 4, kHk = 2;
constexpr double kMostWork = 1 << 17;  // multiply-adds of a run
constexpr uint64_t kLargestWorkspace = 1 << 20;
constexpr size_t kStructRoom = 1 << 16;  // what struct_size may claim

// Each has zeros behind it: a longer one is a newer caller's.
struct Structs {
  tw_attention& problem = *padded<tw_attention>();
  tw_attention_grad& grad = *padded<tw_attention_grad>();
  tw_exec& exec = *padded<tw_exec>();
  tw_merge& merge = *padded<tw_merge>();
  tw_plan& plan = *padded<tw_plan>();

 private:
  template <class Struct>
  static Struct* padded() {
    return reinterpret_cast<Struct*>(new char[kStructRoom + sizeof(Struct)]());
  }
};

tw_tensor tensor(int32_t dtype, int64_t n0, int64_t n1 = 1, int64_t n2 = 1, int64_t n3 = 1) {
  return tw_tensor_of(nullptr, dtype, n0, n1, n2, n3);
}

// ---- A legal call

void make_base(Bytes& bytes, Structs& s) {
  constexpr std::array<int32_t, 3> kTypes = {TW_F32, TW_F16, TW_BF16};
  constexpr std::array<int64_t, 6> kDims = {8, 1, 5, 16, 33, 72};
  const int32_t type = kTypes[static_cast<size_t>(bytes.below(kTypes.size()))];
  const int64_t dim = kDims[static_cast<size_t>(bytes.below(kDims.size()))];
  const int64_t value_dim = kDims[static_cast<size_t>(bytes.below(kDims.size()))];
  tw_attention& a = s.problem;
  TW_INIT(a);
  a.device_type = TW_CPU;
  a.q = tensor(type, kB, kSq, kH, dim);
  a.k = tensor(type, kB, kSk, kHk, dim), a.v = tensor(type, kB, kSk, kHk, value_dim);
  a.out = tensor(type, kB, kSq, kH, value_dim), a.lse = tensor(TW_F32, kB, kH, kSq);
  TW_INIT(s.grad);
  s.grad.dout = a.out, s.grad.dq = a.q, s.grad.dk = a.k, s.grad.dv = a.v;
  TW_INIT(s.exec);
  TW_INIT(s.merge);
  s.merge.device_type = TW_CPU;
  s.merge.parts = 2;
  s.merge.out = tensor(type, 1, kSq, kH, value_dim), s.merge.lse = tensor(TW_F32, 1, kH, kSq);
  s.merge.out_parts = tensor(TW_F32, 1, kSq, kH, value_dim), s.merge.lse_parts = s.merge.lse;
  s.merge.out_part_stride = kSq * kH * value_dim, s.merge.lse_part_stride = kSq * kH;
}

void make_packed(tw_attention& a, tw_attention_grad& g) {
  for (tw_tensor* t : {&a.q, &a.k, &a.v, &a.out, &a.lse, &g.dout, &g.dq, &g.dk, &g.dv}) t->shape[0] = 1;
  a.cu_seqlens_q = a.cu_seqlens_k = tensor(TW_I32, kB + 1);
}

// One bit of the input an option.
void add_options(uint32_t chosen, tw_attention& a, tw_attention_grad& g) {
  const auto next = [&] {
    const bool on = chosen & 1;
    chosen >>= 1;
    return on;
  };
  const bool packed = next();
  const int64_t slots = packed ? 1 : kB;
  if (packed) make_packed(a, g);
  if (next()) a.flags |= TW_CAUSAL;
  if (next()) a.flags |= TW_TOP_LEFT;
  if (next()) a.flags |= TW_WINDOW_LEFT, a.window_left = 2;
  if (next()) a.flags |= TW_WINDOW_RIGHT, a.window_right = 1;
  if (next()) a.attention_chunk = 2;
  if (next()) a.seqused_q = tensor(TW_I32, kB);
  if (next()) a.seqused_k = tensor(TW_I32, kB);
  if (next()) a.leftpad_k = tensor(TW_I32, kB);
  if (next()) a.batch_index_k = tensor(TW_I32, kB);
  if (next()) a.bias = tensor(TW_F32, 1, kH, kSq, kSk), g.dbias = a.bias;
  if (next()) a.alibi_slopes = tensor(TW_F32, kB, kH);
  if (next()) a.mask = tensor(TW_BOOL, kB, 1, kSq, kSk);
  if (next()) a.key_begin = tensor(TW_I32, slots, 1, kSq);
  if (next()) a.key_end = tensor(TW_I32, slots, kH, kSq);
  if (next()) a.q_positions = tensor(TW_I32, 1, kSq);
  if (next()) a.k_positions = tensor(TW_I32, 1, kSk);
  if (next()) a.sink = tensor(TW_F32, kH), g.dsink = a.sink;
  if (next()) a.dropout_p = 0.5f, a.dropout_state = tensor(TW_I64, 2);
  if (next()) a.softcap = 30;
  if (next()) a.flags |= TW_SOFTMAX_SCALE, a.softmax_scale = -2;
  if (next()) a.prior_out = tensor(TW_F32, slots, kSq, kH, a.out.shape[3]), a.prior_lse = a.lse;
  if (next()) g.flags |= TW_GRAD_ACCUMULATE, g.dq.dtype = g.dk.dtype = g.dv.dtype = TW_F32;
  if (next()) g.dlse = a.lse;
  if (next()) a.lse = {};
  if (next()) a.max_seqlen_q = a.max_seqlen_k = 4;
  if (next()) a.threads = 3;
}

// ---- Edits

void edit(Bytes& bytes, char* place, size_t size) {
  const size_t at = bytes.take<uint16_t>() % size;
  const auto write = [&](auto value) {
    const size_t aligned = at / sizeof value * sizeof value;
    if (aligned + sizeof value <= size) std::memcpy(place + aligned, &value, sizeof value);
  };
  switch (bytes.below(6)) {
    case 0:
      return write(bytes.take<uint8_t>());
    case 1:
      return write(int32_t{bytes.take<int8_t>()});
    case 2:
      return write(bytes.take<int32_t>());
    case 3:
      return write(bytes.take<int64_t>());
    default:
      return write(int64_t{bytes.take<int8_t>()});
  }
}

template <class Struct>
void edit(Bytes& bytes, Struct& s) {
  edit(bytes, reinterpret_cast<char*>(&s), sizeof s);
}

void edit_structs(Bytes& bytes, Structs& s) {
  for (int64_t edits = bytes.below(8); edits > 0 && !bytes.empty(); --edits) {
    switch (bytes.below(8)) {
      case 0:
        edit(bytes, s.merge);
        break;
      case 1:
        edit(bytes, s.exec);
        break;
      case 2:
      case 3:
        edit(bytes, s.grad);
        break;
      default:
        edit(bytes, s.problem);
    }
  }
}

// ---- Calls

constexpr bool is_status(tw_status status) { return status >= TW_OK && status < TW_INTERNAL; }

void require_answer(tw_status status) {
  require(is_status(status), "a status is one of the header's, and no bug", tw_last_error());
  require(status == TW_OK || *tw_last_error(), "an error has a message");
}

void in_order(void*, int64_t count, void (*task)(void*, int64_t), void* context) {
  for (int64_t i = 0; i < count; ++i) task(context, i);
}

tw_thread_pool plain_loop() {
  tw_thread_pool pool;
  TW_INIT(pool);
  pool.parallel_for = in_order;
  return pool;
}

bool place_tensors(CallMemory& memory, Structs& s, bool backward) {
  bool placed = true;
  for (const auto& field : kProblemFields) {
    const bool written = field.role == Role::result && !backward;
    placed = memory.place(s.problem.*field.given, field.axes, written) && placed;
  }
  for (const auto& field : kGradFields) {
    placed = memory.place(s.grad.*field.given, field.axes, field.role == Role::gradient) && placed;
  }
  for (tw_tensor* unserved : {&s.problem.block_table, &s.problem.q_scale, &s.problem.k_scale, &s.problem.v_scale}) {
    placed = placed && unserved->dtype == TW_NONE;
  }
  return placed;
}

double work_of(const tw_attention& a) {
  const auto extent = [](int64_t n) { return static_cast<double>(n); };
  return extent(a.q.shape[0]) * extent(a.q.shape[1]) * extent(a.q.shape[2]) * extent(a.k.shape[1]) *
         (extent(a.q.shape[3]) + extent(a.v.shape[3]));
}

void explain(Bytes& bytes, const Structs& s, const tw_attention_grad* grad) {
  const auto capacity = bytes.take<uint8_t>();
  const std::unique_ptr<char[]> text(new char[capacity]);
  const size_t length = tw_attention_explain(&s.problem, grad, text.get(), capacity);
  require(length > 0, "explain says something");
  if (capacity > 0) require(std::strlen(text.get()) == std::min<size_t>(length, capacity - 1u), "and ends it with 0");
}

void run(CallMemory& memory, Structs& s, const tw_attention_grad* grad, bool one_shot) {
  void* workspace = nullptr;
  const uint64_t bytes = std::min(s.plan.workspace_bytes, kLargestWorkspace);  // a corrupt plan may ask for more
  if (!one_shot && bytes > 0) require(posix_memalign(&workspace, 256, bytes) == 0, "there is memory");
  s.exec.workspace = workspace;
  if (workspace && s.exec.workspace_bytes == 0) s.exec.workspace_bytes = bytes;
  memory.remember();
  const tw_status status = !one_shot ? tw_attention_run(&s.plan, &s.problem, grad, &s.exec)
                           : grad    ? tw_attention_backward(&s.problem, grad, &s.exec)
                                     : tw_attention_forward(&s.problem, &s.exec);
  std::free(workspace);
  require_answer(status);
  memory.require_unchanged(status != TW_OK);
}

void choose_kernel(int64_t index) {
  const auto all = kernels(TW_CPU);
  if (index < static_cast<int64_t>(all.size())) {
    setenv("TILEWISE_FORCE_KERNEL", all[static_cast<size_t>(index)]->name, 1);
  } else {
    unsetenv("TILEWISE_FORCE_KERNEL");
  }
}

void attend(Bytes& bytes, Structs& s) {
  const uint8_t how = bytes.take<uint8_t>();
  const bool backward = how & 1, one_shot = how & 2, asks = how & 4, corrupt_plan = (how & 0x38) == 0x38;
  choose_kernel(bytes.below(2 * static_cast<int64_t>(kernels(TW_CPU).size())));
  const tw_attention_grad* grad = backward ? &s.grad : nullptr;
  const tw_thread_pool pool = plain_loop();
  s.exec.pool = &pool, s.exec.fault = nullptr;
  CallMemory memory(bytes);
  const bool placed = place_tensors(memory, s, backward);
  const tw_status status = tw_attention_plan(&s.problem, grad, &s.plan);
  require_answer(status);
  if (asks) explain(bytes, s, grad);
  if (corrupt_plan) edit(bytes, s.plan);
  require(tw_plan_kernel(&s.plan) != nullptr, "a plan's kernel has a name");
  const bool small = placed && work_of(s.problem) < kMostWork && s.plan.workspace_bytes <= kLargestWorkspace;
  if (status != TW_OK || small) run(memory, s, grad, one_shot);
}

void merge_parts(Bytes& bytes, Structs& s) {
  constexpr int64_t kMostParts = 8;
  tw_merge& m = s.merge;
  if (m.parts > kMostParts) return;
  CallMemory memory(bytes);
  // Both parts' memory in one: their strides are an axis more, in the place of the first where that has one element.
  const auto place_parts = [&](tw_tensor& part, int64_t stride, int axes) {
    tw_tensor all = part;
    if (m.parts > 1 && part.shape[0] != 1) return false;
    if (m.parts > 0) all.shape[0] *= m.parts, all.stride[0] = m.parts > 1 ? stride : part.stride[0];
    const bool placed = memory.place(all, axes, false);
    part.data = all.data;
    return placed;
  };
  const bool placed = place_parts(m.out_parts, m.out_part_stride, 4) &&
                      place_parts(m.lse_parts, m.lse_part_stride, 3) && memory.place(m.out, 4, true) &&
                      memory.place(m.lse, 3, true);
  if (!placed) return;
  memory.remember();
  const tw_status status = tw_attention_merge(&m, &s.exec);
  require_answer(status);
  memory.require_unchanged(status != TW_OK);
}

}  // namespace
}  // namespace tilewise::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tilewise::fuzz;
  static Structs structs;
  Bytes bytes(data, size);
  make_base(bytes, structs);
  std::memset(&structs.plan, 0, sizeof structs.plan);
  add_options(bytes.take<uint32_t>(), structs.problem, structs.grad);
  const bool merges = bytes.below(8) == 0;
  edit_structs(bytes, structs);
  if (merges) {
    const tw_thread_pool pool = plain_loop();
    structs.exec.pool = &pool;
    merge_parts(bytes, structs);
  } else {
    attend(bytes, structs);
  }
  return 0;
}
