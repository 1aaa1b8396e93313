// Plan and run: a plan serves its problem and smaller ones, names what differs, and never overflows its workspace.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>

#include "api_call.h"

namespace tilewise::test {
namespace {

// A workspace of exactly the planned size, so that ASan sees a byte too many.
struct Workspace {
  std::unique_ptr<void, decltype(&std::free)> memory{nullptr, std::free};
  tw_exec exec;

  explicit Workspace(uint64_t bytes) {
    TW_INIT(exec);
    void* place = nullptr;
    if (bytes > 0 && posix_memalign(&place, 256, bytes) == 0) std::memset(place, 0xA5, bytes);
    memory.reset(place);
    exec.workspace = place;
    exec.workspace_bytes = bytes;
  }
};

tw_plan plan_of(const Call& c, bool backward = false) {
  tw_plan plan;
  EXPECT_EQ(tw_attention_plan(&c.a, backward ? &c.g : nullptr, &plan), TW_OK) << tw_last_error();
  return plan;
}

tw_status run(const tw_plan& plan, const Call& c, bool backward = false) {
  Workspace workspace(plan.workspace_bytes);
  return tw_attention_run(&plan, &c.a, backward ? &c.g : nullptr, &workspace.exec);
}

TEST(ApiPlan, RunsWhatItPlanned) {
  Call once, planned;
  ASSERT_EQ(once.forward(), TW_OK);
  ASSERT_EQ(run(plan_of(planned), planned), TW_OK) << tw_last_error();
  EXPECT_EQ(once.out, planned.out);
  EXPECT_EQ(once.lse, planned.lse);
  ASSERT_EQ(once.backward(), TW_OK);
  ASSERT_EQ(run(plan_of(planned, true), planned, true), TW_OK) << tw_last_error();
  EXPECT_EQ(once.dq, planned.dq);
  EXPECT_EQ(once.dk, planned.dk);
  EXPECT_EQ(once.dv, planned.dv);
}

TEST(ApiPlan, NeedsNoData) {
  Call c, empty;
  for (tw_tensor* t : {&empty.a.q, &empty.a.k, &empty.a.v, &empty.a.out, &empty.a.lse}) t->data = nullptr;
  empty.a.seqused_k = tw_tensor_of(nullptr, TW_I32, 2, 1, 1, 1);
  c.a.seqused_k = c.extra(TW_I32, std::vector<int32_t>{3, 5});
  EXPECT_EQ(run(plan_of(empty), c), TW_OK) << tw_last_error();
}

TEST(ApiPlan, IsPlainBytes) {
  Call c;
  const tw_plan plan = plan_of(c), again = plan_of(c);
  EXPECT_EQ(std::memcmp(&plan, &again, sizeof plan), 0);
  tw_plan copy;
  std::memcpy(&copy, &plan, sizeof copy);
  EXPECT_EQ(run(copy, c), TW_OK) << tw_last_error();
}

struct Change {
  const char* name;
  void (*change)(Call& c);
  const char* message = nullptr;  // none: the plan serves it
};
std::ostream& operator<<(std::ostream& stream, const Change& change) { return stream << change.name; }

class PlanChange : public testing::TestWithParam<Change> {};

// The plan is made for this call.
void make_richer(Call& c) {
  c.a.flags = TW_CAUSAL | TW_WINDOW_LEFT;
  c.a.window_left = 4;
  c.a.softcap = 20;
  c.a.dropout_p = 0.25f;
  c.a.mask = c.extra(TW_BOOL, 2, 1, 3, 5);
  std::memset(c.spare.data(), 1, 64);
}

const Change kChanges[] = {
    {"Nothing", [](Call&) {}},
    {"Scale", [](Call& c) { c.a.flags |= TW_SOFTMAX_SCALE, c.a.softmax_scale = 3; }},
    {"Seed", [](Call& c) { c.a.dropout_seed = 5, c.a.dropout_offset = 6; }},
    {"Pointers",
     [](Call& c) {
       static std::vector<float> other = c.q;
       c.a.q.data = other.data();
     }},
    {"Strides", [](Call& c) { c.a.k.stride[0] = 0; }},
    {"Batch",
     [](Call& c) {
       for (tw_tensor* t : {&c.a.q, &c.a.k, &c.a.v, &c.a.out, &c.a.lse, &c.a.mask}) t->shape[0] = 1;
     }},
    {"Keys",
     [](Call& c) {
       for (tw_tensor* t : {&c.a.k, &c.a.v}) t->shape[1] = 4;
       c.a.mask.shape[3] = 4;
     }},
    {"OneKey",
     [](Call& c) {
       for (tw_tensor* t : {&c.a.k, &c.a.v}) t->shape[1] = 1;
       c.a.mask.shape[3] = 1;
     }},
    {"Rows",
     [](Call& c) {
       for (tw_tensor* t : {&c.a.q, &c.a.out}) t->shape[1] = 2;
       c.a.lse.shape[2] = c.a.mask.shape[2] = 2;
     }},

    {"MoreSequences",
     [](Call& c) {
       for (tw_tensor* t : {&c.a.q, &c.a.k, &c.a.v, &c.a.out, &c.a.lse, &c.a.mask}) t->shape[0] = 3;
       static std::vector<float> more(3 * 5 * 4 * 8);
       c.a.q.data = c.a.k.data = c.a.v.data = more.data();
       static std::vector<float> out(3 * 3 * 4 * 6), lse(3 * 4 * 3);
       c.a.out.data = out.data(), c.a.lse.data = lse.data();
     },
     "B: planned for at most 2, now 3"},
    {"MoreKeys",
     [](Call& c) {
       for (tw_tensor* t : {&c.a.k, &c.a.v}) t->shape[1] = 6, t->stride[0] = 0;
       c.a.mask.shape[3] = 6;
     },
     "the longest key: planned for at most 5, now 6"},
    {"Causal", [](Call& c) { c.a.flags &= ~TW_CAUSAL; }, "TW_CAUSAL: planned with it, now without"},
    {"TopLeft", [](Call& c) { c.a.flags |= TW_TOP_LEFT; }, "TW_TOP_LEFT: planned without it, now with"},
    {"Deterministic", [](Call& c) { c.a.flags |= TW_DETERMINISTIC; }, "TW_DETERMINISTIC"},
    {"Invariant", [](Call& c) { c.a.flags |= TW_BATCH_INVARIANT; }, "TW_BATCH_INVARIANT"},
    {"Tail", [](Call& c) { c.a.flags |= TW_MASK_TAIL; }, "TW_MASK_TAIL"},
    {"Window", [](Call& c) { c.a.window_left = 5; }, "window_left (-1 = off): planned 4, now 5"},
    {"WindowOff", [](Call& c) { c.a.flags &= ~TW_WINDOW_LEFT, c.a.window_left = 0; },
     "window_left (-1 = off): planned 4, now -1"},
    {"WindowRight", [](Call& c) { c.a.flags |= TW_WINDOW_RIGHT; }, "window_right (-1 = off): planned -1, now 0"},
    {"Chunk", [](Call& c) { c.a.attention_chunk = 8; }, "attention_chunk: planned 0, now 8"},
    {"Softcap", [](Call& c) { c.a.softcap = 30; }, "softcap: planned 20, now 30"},
    {"Dropout", [](Call& c) { c.a.dropout_p = 0.5f; }, "dropout_p: planned 0.25, now 0.5"},
    {"Threads", [](Call& c) { c.a.threads = 2; }, "threads: planned 0, now 2"},
    {"Splits", [](Call& c) { c.a.num_splits = 2; }, "num_splits: planned 0, now 2"},
    {"Margin", [](Call& c) { c.a.sm_margin = 2; }, "sm_margin: planned 0, now 2"},
    {"Lse", [](Call& c) { c.a.lse.dtype = TW_NONE; }, "lse.dtype: planned fp32, now none"},
    {"Bias", [](Call& c) { c.a.bias = c.extra(TW_F32, 1, 1, 1, 5); }, "bias.dtype: planned none, now fp32"},
    {"Types",
     [](Call& c) {
       for (tw_tensor* t : {&c.a.q, &c.a.k, &c.a.v}) t->dtype = TW_BF16;
     },
     "q.dtype: planned fp32, now bf16"},
    {"Repeat", [](Call& c) { c.a.mask.shape[0] = 1; }, "mask.shape[0] is 1: planned as an axis that does not repeat"},
    {"NoRepeat", [](Call& c) { c.a.mask = c.extra(TW_BOOL, 2, 4, 3, 5); },
     "mask.shape[1] is 4: planned as an axis that repeats"},
    {"Heads", [](Call& c) { c.a.q.shape[2] = c.a.out.shape[2] = c.a.lse.shape[1] = 2; },
     "q.shape[2], heads: planned 4, now 2"},
    {"KeyHeads", [](Call& c) { c.a.k.shape[2] = c.a.v.shape[2] = 1; }, "k.shape[2], heads: planned 2, now 1"},
    {"HeadDim", [](Call& c) { c.a.q.shape[3] = c.a.k.shape[3] = 7; }, "q.shape[3], head_dim: planned 8, now 7"},
    {"ValueDim", [](Call& c) { c.a.v.shape[3] = c.a.out.shape[3] = 5; }, "v.shape[3], head_dim: planned 6, now 5"},
};

TEST_P(PlanChange, IsServedOrNamed) {
  Call planned, c;
  make_richer(planned);
  const tw_plan plan = plan_of(planned);
  make_richer(c);
  GetParam().change(c);
  const tw_status status = run(plan, c);
  if (!GetParam().message) {
    EXPECT_EQ(status, TW_OK) << tw_last_error();
    return;
  }
  EXPECT_EQ(status, TW_PLAN_MISMATCH) << tw_last_error();
  EXPECT_TRUE(last_error_has(GetParam().message)) << tw_last_error() << "\nwanted: " << GetParam().message;
  EXPECT_TRUE(c.forward_is_untouched());
}
INSTANTIATE_TEST_SUITE_P(Api, PlanChange, testing::ValuesIn(kChanges),
                         [](const auto& change) { return std::string(change.param.name); });

TEST(ApiPlan, ForwardIsNotBackward) {
  Call c;
  EXPECT_EQ(run(plan_of(c, true), c, false), TW_PLAN_MISMATCH);
  EXPECT_TRUE(last_error_has("grad: planned with it, now without")) << tw_last_error();
  EXPECT_EQ(run(plan_of(c, false), c, true), TW_PLAN_MISMATCH);
  EXPECT_TRUE(last_error_has("grad: planned without it, now with")) << tw_last_error();
  const tw_plan plan = plan_of(c, true);
  c.g.dq.dtype = TW_NONE;
  EXPECT_EQ(run(plan, c, true), TW_PLAN_MISMATCH);
  EXPECT_TRUE(last_error_has("dq.dtype: planned fp32, now none")) << tw_last_error();
  EXPECT_TRUE(c.forward_is_untouched() && c.backward_is_untouched());
}

TEST(ApiPlan, PackedTotalsMayShrinkOnly) {
  Call c;
  for (tw_tensor* t : {&c.a.q, &c.a.k, &c.a.v, &c.a.out, &c.a.lse}) t->shape[0] = 1;
  c.a.cu_seqlens_q = c.a.cu_seqlens_k = c.extra(TW_I32, std::vector<int32_t>{0, 1, 3});
  const tw_plan plan = plan_of(c);
  EXPECT_EQ(run(plan, c), TW_OK) << tw_last_error();
  c.a.cu_seqlens_q.shape[0] = c.a.cu_seqlens_k.shape[0] = 2;
  EXPECT_EQ(run(plan, c), TW_OK) << tw_last_error();
  c.a.cu_seqlens_q.shape[0] = c.a.cu_seqlens_k.shape[0] = 4;
  EXPECT_EQ(run(plan, c), TW_PLAN_MISMATCH);
  EXPECT_TRUE(last_error_has("B: planned for at most 2, now 3")) << tw_last_error();
}

TEST(ApiPlan, ForeignBytesAreRefused) {
  Call c;
  tw_plan plan;
  std::memset(&plan, 0, sizeof plan);
  EXPECT_EQ(run(plan, c), TW_PLAN_MISMATCH);
  EXPECT_TRUE(last_error_has("plan was not made by tw_attention_plan")) << tw_last_error();
  EXPECT_STREQ(tw_plan_kernel(&plan), "none");
  EXPECT_STREQ(tw_plan_kernel(nullptr), "none");
  for (size_t byte = 0; byte < sizeof plan; ++byte) {
    plan = plan_of(c);
    reinterpret_cast<unsigned char*>(&plan)[byte] ^= 0x40;
    EXPECT_EQ(tw_attention_run(&plan, &c.a, nullptr, nullptr), TW_PLAN_MISMATCH) << byte;
  }
  EXPECT_TRUE(c.forward_is_untouched());
}

TEST(ApiPlan, KernelHasAName) {
  Call c;
  const tw_plan forward = plan_of(c), backward = plan_of(c, true);
  EXPECT_EQ(std::string(tw_plan_kernel(&forward)).rfind("cpu.", 0), 0u);
  EXPECT_NE(std::string(tw_plan_kernel(&forward)).find(".forward"), std::string::npos);
  EXPECT_NE(std::string(tw_plan_kernel(&backward)).find(".backward"), std::string::npos);
}

TEST(ApiWorkspace, IsCheckedBeforeAnythingRuns) {
  Call c;
  const tw_plan plan = plan_of(c, true);
  ASSERT_GT(plan.workspace_bytes, 0u);
  Workspace workspace(plan.workspace_bytes + 256);
  tw_exec& e = workspace.exec;

  e.workspace_bytes = plan.workspace_bytes - 1;
  EXPECT_EQ(tw_attention_run(&plan, &c.a, &c.g, &e), TW_WORKSPACE_TOO_SMALL);
  EXPECT_TRUE(last_error_has(std::to_string(plan.workspace_bytes).c_str())) << tw_last_error();
  EXPECT_TRUE(last_error_has(std::to_string(plan.workspace_bytes - 1).c_str())) << tw_last_error();
  EXPECT_EQ(tw_attention_backward(&c.a, &c.g, &e), TW_WORKSPACE_TOO_SMALL);
  e.workspace_bytes = plan.workspace_bytes;
  e.workspace = static_cast<char*>(e.workspace) + 128;
  EXPECT_EQ(tw_attention_run(&plan, &c.a, &c.g, &e), TW_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_has("exec.workspace is")) << tw_last_error();
  e.workspace = nullptr;
  EXPECT_EQ(tw_attention_run(&plan, &c.a, &c.g, &e), TW_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_has("exec.workspace is NULL")) << tw_last_error();
  EXPECT_EQ(tw_attention_run(&plan, &c.a, &c.g, nullptr), TW_WORKSPACE_TOO_SMALL);
  EXPECT_TRUE(c.backward_is_untouched());
}

TEST(ApiWorkspace, ContentNeverMatters) {
  Call zeros, ones;
  const tw_plan plan = plan_of(zeros, true);
  ASSERT_EQ(zeros.forward(), TW_OK);
  ASSERT_EQ(ones.forward(), TW_OK);
  Workspace workspace(plan.workspace_bytes);
  std::memset(workspace.exec.workspace, 0, plan.workspace_bytes);
  ASSERT_EQ(tw_attention_run(&plan, &zeros.a, &zeros.g, &workspace.exec), TW_OK);
  std::memset(workspace.exec.workspace, 0xFF, plan.workspace_bytes);
  ASSERT_EQ(tw_attention_run(&plan, &ones.a, &ones.g, &workspace.exec), TW_OK);
  EXPECT_EQ(zeros.dq, ones.dq);
  EXPECT_EQ(zeros.dk, ones.dk);
  EXPECT_EQ(zeros.dv, ones.dv);
}

// ---- Environment, read at each planning.

struct Variable {
  const char* name;
  Variable(const char* variable, const char* value) : name(variable) { setenv(variable, value, 1); }
  ~Variable() { unsetenv(name); }
};

TEST(ApiEnvironment, ForcesAKernel) {
  Call c;
  const Variable force("TILEWISE_FORCE_KERNEL", "reference");
  const tw_plan plan = plan_of(c);
  EXPECT_STREQ(tw_plan_kernel(&plan), "cpu.reference.forward");
  EXPECT_EQ(run(plan, c), TW_OK) << tw_last_error();
}

TEST(ApiEnvironment, UnknownKernelIsNamed) {
  Call c;
  const Variable force("TILEWISE_FORCE_KERNEL", "flash");
  EXPECT_EQ(c.forward(), TW_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_has("TILEWISE_FORCE_KERNEL is flash")) << tw_last_error();
  EXPECT_TRUE(c.forward_is_untouched());
}

TEST(ApiEnvironment, ForcedKernelOfTheOtherPass) {
  Call c;
  const Variable force("TILEWISE_FORCE_KERNEL", "reference.backward");
  EXPECT_EQ(c.forward(), TW_UNSUPPORTED);
  EXPECT_TRUE(last_error_has("reference.backward")) << tw_last_error();
}

TEST(ApiEnvironment, EmptyIsUnset) {
  Call c;
  const Variable force("TILEWISE_FORCE_KERNEL", ""), strict("TILEWISE_STRICT", "0");
  EXPECT_EQ(c.forward(), TW_OK) << tw_last_error();
}

TEST(ApiEnvironment, StrictRefusesTheFallback) {
  Call c;
  const Variable strict("TILEWISE_STRICT", "1"), force("TILEWISE_FORCE_KERNEL", "reference");
  EXPECT_EQ(c.forward(), TW_OK) << "forced is asked for";
}

// Tensors at its first byte, in its midst and at its last bytes; right after it they may lie.
TEST(ApiPlan, WorkspaceLiesApartFromTensors) {
  for (const bool backward : {false, true}) {
    Call c;
    const tw_plan plan = plan_of(c, backward);
    const uint64_t bytes = plan.workspace_bytes;
    Workspace workspace(bytes + (1 << 16));
    const auto run_it = [&] { return tw_attention_run(&plan, &c.a, backward ? &c.g : nullptr, &workspace.exec); };
    const struct {
      const char* name;
      tw_tensor& tensor;
    } tensors[] = {{"q", c.a.q},     {"k", c.a.k},   {"v", c.a.v},   {"out", c.a.out},
                   {"lse", c.a.lse}, {"dq", c.g.dq}, {"dk", c.g.dk}, {"dout", c.g.dout}};
    for (const auto& [name, tensor] : tensors) {
      if (!backward && name[0] == 'd') continue;
      void* const own = tensor.data;
      for (const uint64_t offset : {uint64_t{0}, bytes / 2 / 64 * 64, bytes - 64}) {
        tensor.data = static_cast<char*>(workspace.exec.workspace) + offset;
        EXPECT_EQ(run_it(), TW_INVALID_ARGUMENT) << name << " " << offset;
        EXPECT_TRUE(last_error_has((std::string("exec.workspace shares memory with ") + name + ":").c_str()))
            << tw_last_error();
      }
      if (name[0] == 'd') {
        EXPECT_EQ(tw_attention_backward(&c.a, &c.g, &workspace.exec), TW_INVALID_ARGUMENT) << name;
      } else if (!backward) {
        EXPECT_EQ(tw_attention_forward(&c.a, &workspace.exec), TW_INVALID_ARGUMENT) << name;
      }
      tensor.data = own;
    }
    std::memcpy(static_cast<char*>(workspace.exec.workspace) + bytes, c.q.data(), c.q.size() * sizeof(float));
    c.a.q.data = static_cast<char*>(workspace.exec.workspace) + bytes;
    EXPECT_EQ(run_it(), TW_OK) << tw_last_error();
  }
}

}  // namespace
}  // namespace tilewise::test
