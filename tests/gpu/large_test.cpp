// Many sequences, many heads, and tensors of more than 2^31 elements: rows and keys here and there against fp64.
#include <cmath>

#include "gpu/device_call.h"

namespace tilewise::gpu {
namespace {

class Large : public EveryFamily {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Large);
INSTANTIATE_TEST_SUITE_P(Gpu, Large, testing::ValuesIn(families()), test_name);

constexpr int64_t kTwo31 = int64_t{1} << 31;
constexpr int64_t kMostRowsOfKey = 10000;  // that the host looks at for the gradients of one key

// Numbers of one call in fp64, worked out from what the tensors hold and from its own lse and out.
class Exact {
 public:
  explicit Exact(const DeviceCall& call)
      : call_(call),
        s_(call.sizes),
        scale_(1 / std::sqrt(double(s_.dim))),
        keeps_scores_(std::string_view(tw_plan_kernel(&call.plans[0])).starts_with("cuda.standard")) {}

  int64_t row_count() const { return s_.batch * s_.rows * s_.heads; }
  int64_t key_count() const { return s_.batch * s_.keys * s_.heads_kv; }

  // Row r: sequence, row and head in one number, as they lie in memory.
  void check_row(int64_t r) const {
    SCOPED_TRACE("row " + std::to_string(r));
    std::vector<double> p(s_.keys), out(s_.dim);
    double sum = 0;
    for (int64_t j = 0; j < s_.keys; ++j) sum += p[j] = std::exp(score(r, key_of(r, j)));
    for (int64_t j = 0; j < s_.keys; ++j)
      for (int64_t d = 0; d < s_.dim; ++d) out[d] += p[j] / sum * value_at(kV, key_of(r, j) * s_.dim + d);
    expect_close("out", call_.out, r, out, keeps_scores_ ? 2e-2 : 1e-2, 0);
    EXPECT_NEAR(lse_of(r), std::log(sum), keeps_scores_ ? 1e-2 : 1e-4);
  }

  void check_dq(int64_t r) const {
    SCOPED_TRACE("row " + std::to_string(r));
    std::vector<double> dq(s_.dim);
    const double lse = lse_of(r), delta = delta_of(r);
    double rounding = 0;
    for (int64_t j = 0; j < s_.keys; ++j) {
      const int64_t key = key_of(r, j);
      const double p = std::exp(score(r, key) - lse) * scale_, dp = dot(kDout, r, kV, key);
      for (int64_t d = 0; d < s_.dim; ++d) dq[d] += p * (dp - delta) * value_at(kK, key * s_.dim + d);
      rounding += rounding_of(p * dp) * largest(kK, key);
    }
    expect_close("dq", call_.dq, r, dq, 3e-2, rounding);
  }

  void check_key(int64_t key) const {
    SCOPED_TRACE("key " + std::to_string(key));
    std::vector<double> dk(s_.dim), dv(s_.dim);
    double rounding = 0;
    const int64_t kv = key % s_.heads_kv, b = key / s_.heads_kv / s_.keys, group = s_.heads / s_.heads_kv;
    for (int64_t i = 0; i < s_.rows; ++i) {
      for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        const int64_t r = (b * s_.rows + i) * s_.heads + h;
        const double p = std::exp(score(r, key) - lse_of(r)), dp = dot(kDout, r, kV, key);
        const double ds = p * (dp - delta_of(r)) * scale_;
        rounding += rounding_of(p * dp * scale_) * largest(kQ, r);
        for (int64_t d = 0; d < s_.dim; ++d) {
          dk[d] += ds * value_at(kQ, r * s_.dim + d);
          dv[d] += p * value_at(kDout, r * s_.dim + d);
        }
      }
    }
    expect_close("dk", call_.dk, key, dk, 3e-2, rounding);
    expect_close("dv", call_.dv, key, dv, 1e-2, 0);
  }

 private:
  int64_t key_of(int64_t r, int64_t j) const {
    const int64_t h = r % s_.heads, b = r / s_.heads / s_.rows;
    return (b * s_.keys + j) * s_.heads_kv + h / (s_.heads / s_.heads_kv);
  }
  double dot(uint64_t x, int64_t i, uint64_t y, int64_t j) const {
    double sum = 0;
    for (int64_t d = 0; d < s_.dim; ++d) sum += value_at(x, i * s_.dim + d) * value_at(y, j * s_.dim + d);
    return sum;
  }
  double largest(uint64_t tensor, int64_t row) const {
    double most = 0;
    for (int64_t d = 0; d < s_.dim; ++d) most = std::max(most, std::abs(value_at(tensor, row * s_.dim + d)));
    return most;
  }
  // dP lies in memory in the type of q too.
  double rounding_of(double dp) const { return keeps_scores_ ? 0x1p-8 * std::abs(dp) : 0; }
  double score(int64_t r, int64_t key) const { return scale_ * dot(kQ, r, kK, key); }
  double lse_of(int64_t r) const {
    const int64_t h = r % s_.heads, i = r / s_.heads % s_.rows, b = r / s_.heads / s_.rows;
    return read(call_.lse, Type::f32, (b * s_.heads + h) * s_.rows + i, 1)[0];
  }
  double delta_of(int64_t r) const {
    double sum = 0;
    const std::vector<double> out = read(call_.out, call_.type, r * s_.dim, s_.dim);
    for (int64_t d = 0; d < s_.dim; ++d) sum += value_at(kDout, r * s_.dim + d) * out[d];
    return sum;
  }
  void expect_close(const char* name, const DeviceBytes& tensor, int64_t row, const std::vector<double>& want,
                    double part, double rounding) const {
    const std::vector<double> got = read(tensor, call_.type, row * s_.dim, s_.dim);
    double largest = 0;
    for (const double x : want) largest = std::max(largest, std::abs(x));
    for (int64_t d = 0; d < s_.dim; ++d) {
      ASSERT_NEAR(got[d], want[d], part * largest + rounding + 1e-5) << name << " dim " << d;
    }
  }

  const DeviceCall& call_;
  const Sizes s_;
  const double scale_;
  const bool keeps_scores_;  // in memory, in the type of q: as standard attention does
};

// The first, the last, those at 2^31 elements and bytes, and some between.
std::vector<int64_t> samples(int64_t count, int64_t dim) {
  std::vector<int64_t> chosen = {0, count / 3, count / 2, count - 2, count - 1};
  for (const int64_t elements : {kTwo31 / 2, kTwo31, kTwo31 * 2})
    for (const int64_t at : {elements / dim - 1, elements / dim}) chosen.push_back(at);
  std::erase_if(chosen, [&](int64_t x) { return x < 0 || x >= count; });
  return chosen;
}

void check_call(DeviceCall& call, bool backward) {
  const Sizes& sizes = call.sizes;
  SCOPED_TRACE(testing::Message() << "B" << sizes.batch << " Sq" << sizes.rows << " Sk" << sizes.keys << " H"
                                  << sizes.heads << "/" << sizes.heads_kv << " D" << sizes.dim);
  if (!call.has_memory()) GTEST_SKIP() << "this GPU has too little memory";
  RUN_OR_SKIP(call.plan_and_run(false));
  const Exact exact(call);
  for (const int64_t row : samples(exact.row_count(), sizes.dim)) exact.check_row(row);
  if (!backward || testing::Test::HasFailure()) return;
  RUN_OR_SKIP(call.plan_and_run(true));
  for (const int64_t row : samples(exact.row_count(), sizes.dim)) exact.check_dq(row);
  if (sizes.rows * sizes.heads / sizes.heads_kv > kMostRowsOfKey) return;
  for (const int64_t key : samples(exact.key_count(), sizes.dim)) exact.check_key(key);
}

void check(Type type, Sizes sizes, bool backward) {
  DeviceCall call(type, sizes, backward);
  check_call(call, backward);
}

TEST_P(Large, ManySequences) {
  check(Type::bf16, {.batch = 70000, .rows = 3, .keys = 5, .heads = 1, .heads_kv = 1, .dim = 64}, true);
}

TEST_P(Large, ManyHeads) {
  check(Type::f16, {.batch = 1, .rows = 3, .keys = 5, .heads = 70000, .heads_kv = 35000, .dim = 64}, true);
}

// pytorch/pytorch#146704: a batch of 65,536 does not launch.
TEST_P(Large, pytorch_146704) {
  for (const int64_t batch : {65535, 65536, 131071}) {
    check(Type::f16, {.batch = batch, .rows = 4, .keys = 4, .heads = 8, .heads_kv = 8, .dim = 64}, true);
  }
}

// flashinfer-ai/flashinfer#3125: the launch fails, the error is only printed, and the output stays as it was.
TEST_P(Large, flashinfer_3125) {
  check(Type::f16, {.batch = 65536, .rows = 1, .keys = 1, .heads = 1, .heads_kv = 1, .dim = 64}, true);
}

// Dao-AILab/flash-attention#2260: rows rounded up to a tile overflow 32 bits in the scratch memory of the backward.
TEST_P(Large, flash_attention_2260) {
  for (const int64_t batch : {8191, 8300}) {
    check(Type::bf16, {.batch = batch, .rows = 1, .keys = 1, .heads = 16, .heads_kv = 16, .dim = 128}, true);
  }
}

// Dao-AILab/flash-attention#1786: 80,000 packed sequences do not launch.
TEST_P(Large, flash_attention_1786) {
  const Sizes sizes = {.batch = 80000, .rows = 16, .keys = 16, .heads = 1, .heads_kv = 1, .dim = 64};
  DeviceCall call(Type::bf16, sizes, true);
  std::vector<int32_t> offsets;
  for (int64_t b = 0; b <= sizes.batch; ++b) offsets.push_back(static_cast<int32_t>(b * sizes.rows));
  const DeviceBytes memory(offsets.size() * sizeof(int32_t));
  CUDA_OK(cudaMemcpy(memory.data(), offsets.data(), memory.size(), cudaMemcpyDefault));
  const auto pack = [&](tw_tensor& t) { t.shape[0] = 1, t.shape[1] = sizes.batch * sizes.rows; };
  for (tw_tensor* t :
       {&call.a.q, &call.a.k, &call.a.v, &call.a.out, &call.g.dout, &call.g.dq, &call.g.dk, &call.g.dv}) {
    pack(*t);
  }
  call.a.lse = tw_tensor_of(call.lse.data(), TW_F32, 1, 1, sizes.batch * sizes.rows, 1);
  call.a.cu_seqlens_q = call.a.cu_seqlens_k = tw_tensor_of(memory.data(), TW_I32, sizes.batch + 1, 1, 1, 1);
  call.a.max_seqlen_q = call.a.max_seqlen_k = sizes.rows;
  check_call(call, true);
}

// Dao-AILab/flash-attention#359: gradients are wrong now and then.
TEST_P(Large, flash_attention_359) {
  for (int i = 0; i < 10; ++i) {
    check(Type::f16, {.batch = 300, .rows = 2048, .keys = 128, .heads = 1, .heads_kv = 1, .dim = 128}, true);
    if (IsSkipped() || HasFailure()) return;
  }
}

TEST_P(Large, RowsPastTwoToThe31) {
  check(Type::bf16, {.batch = 1, .rows = 131072 + 300, .keys = 40, .heads = 128, .heads_kv = 128, .dim = 128}, true);
}

TEST_P(Large, KeysPastTwoToThe31) {
  check(Type::bf16, {.batch = 1, .rows = 20, .keys = 131072 + 300, .heads = 128, .heads_kv = 128, .dim = 128}, true);
}

}  // namespace
}  // namespace tilewise::gpu
