#include "cuda/standard/blaslt.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "cuda/gpu.h"

namespace tilewise::cuda::standard {
namespace {

// ---- What is used of cuBLASLt's interface, by its documentation. The numbers are part of its binary interface.

using Answer = int;  // cublasStatus_t; 0 is success
using Object = void*;

constexpr int kReal32 = 0, kReal16 = 2, kRealB16 = 14;  // cudaDataType
constexpr int kComputeFp32 = 68;                        // cublasComputeType_t
constexpr int kTransposeA = 3, kTransposeB = 4;         // cublasLtMatmulDescAttributes_t
constexpr int kBatchCount = 5, kBatchOffset = 6;        // cublasLtMatrixLayoutAttribute_t
constexpr int kAlignments[] = {5, 6, 7, 8};             // of A, B, C, D: cublasLtMatmulPreferenceAttributes_t
constexpr uint32_t kAlignment = 16;                     // bytes, of every line

struct Choice {  // cublasLtMatmulHeuristicResult_t
  uint64_t algorithm[8];
  size_t workspace_bytes;
  Answer state;
  float waves;
  int reserved[4];
};

struct Library {
  Answer (*create)(Object* handle);
  Answer (*describe)(Object* product, int compute_type, int scale_type);
  Answer (*set)(Object product, int attribute, const void* value, size_t bytes);
  Answer (*forget)(Object product);
  Answer (*describe_matrix)(Object* matrix, int type, uint64_t rows, uint64_t cols, int64_t stride);
  Answer (*set_matrix)(Object matrix, int attribute, const void* value, size_t bytes);
  Answer (*forget_matrix)(Object matrix);
  Answer (*describe_wish)(Object* wish);
  Answer (*set_wish)(Object wish, int attribute, const void* value, size_t bytes);
  Answer (*forget_wish)(Object wish);
  Answer (*choose)(Object handle, Object product, Object a, Object b, Object c, Object d, Object wish, int most,
                   Choice* choices, int* count);
  Answer (*multiply)(Object handle, Object product, const void* alpha, const void* a, Object a_matrix, const void* b,
                     Object b_matrix, const void* beta, const void* c, Object c_matrix, void* d, Object d_matrix,
                     const void* algorithm, void* workspace, size_t workspace_bytes, void* stream);
};

void* open_library() {
  const char* given = std::getenv("TILEWISE_CUBLASLT");
  if (given && *given) return std::strcmp(given, "none") == 0 ? nullptr : dlopen(given, RTLD_NOW | RTLD_LOCAL);
  void* library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
  return library ? library : dlopen("libcublasLt.so.12", RTLD_NOW | RTLD_LOCAL);
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// Stays open: its handles live as long as the process.
const Library* find_library() {
  static Library found;
  void* library = open_library();
  const bool complete = library && find(library, "cublasLtCreate", found.create) &&
                        find(library, "cublasLtMatmulDescCreate", found.describe) &&
                        find(library, "cublasLtMatmulDescSetAttribute", found.set) &&
                        find(library, "cublasLtMatmulDescDestroy", found.forget) &&
                        find(library, "cublasLtMatrixLayoutCreate", found.describe_matrix) &&
                        find(library, "cublasLtMatrixLayoutSetAttribute", found.set_matrix) &&
                        find(library, "cublasLtMatrixLayoutDestroy", found.forget_matrix) &&
                        find(library, "cublasLtMatmulPreferenceCreate", found.describe_wish) &&
                        find(library, "cublasLtMatmulPreferenceSetAttribute", found.set_wish) &&
                        find(library, "cublasLtMatmulPreferenceDestroy", found.forget_wish) &&
                        find(library, "cublasLtMatmulAlgoGetHeuristic", found.choose) &&
                        find(library, "cublasLtMatmul", found.multiply);
  return complete ? &found : nullptr;
}

const Library* blaslt() {
  static const Library* const library = find_library();
  return library;
}

// Of one GPU. Handles may be used by several threads at once.
struct Handle {
  std::once_flag once;
  std::atomic<Object> object = nullptr;
};
std::array<Handle, kMostGpus> handles;

int number_of(Type type) { return type == Type::f16 ? kReal16 : type == Type::bf16 ? kRealB16 : kReal32; }

// ---- Descriptions: cuBLASLt's objects for one product. Its matrices are columns where ours are lines, so it computes
// C^T = B^T A^T.

class Matrix {
 public:
  Matrix(const BatchedMatrix& m, int64_t lines, int64_t length, int64_t batch) {
    const auto count = static_cast<int32_t>(batch);
    good_ = blaslt()->describe_matrix(&object_, number_of(m.type), static_cast<uint64_t>(length),
                                      static_cast<uint64_t>(lines), m.stride) == 0 &&
            blaslt()->set_matrix(object_, kBatchCount, &count, sizeof count) == 0 &&
            blaslt()->set_matrix(object_, kBatchOffset, &m.batch_stride, sizeof m.batch_stride) == 0;
  }
  ~Matrix() {
    if (object_) blaslt()->forget_matrix(object_);
  }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  bool good() const { return good_; }
  Object get() const { return object_; }

 private:
  Object object_ = nullptr;
  bool good_ = false;
};

class Description {
 public:
  Description(bool transpose_first, bool transpose_second) {
    const int32_t first = transpose_first ? 1 : 0, second = transpose_second ? 1 : 0;
    good_ = blaslt()->describe(&product_, kComputeFp32, kReal32) == 0 &&
            blaslt()->set(product_, kTransposeA, &first, sizeof first) == 0 &&
            blaslt()->set(product_, kTransposeB, &second, sizeof second) == 0 && blaslt()->describe_wish(&wish_) == 0;
    for (const int attribute : kAlignments) {
      good_ = good_ && blaslt()->set_wish(wish_, attribute, &kAlignment, sizeof kAlignment) == 0;
    }
  }
  ~Description() {
    if (wish_) blaslt()->forget_wish(wish_);
    if (product_) blaslt()->forget(product_);
  }
  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;

  bool good() const { return good_; }
  Object product() const { return product_; }
  Object wish() const { return wish_; }

 private:
  Object product_ = nullptr, wish_ = nullptr;
  bool good_ = false;
};

}  // namespace

void prepare_blaslt(int32_t gpu) {
  if (!blaslt()) return;
  Handle& handle = handles[static_cast<size_t>(gpu)];
  std::call_once(handle.once, [&] {
    Object object = nullptr;
    if (blaslt()->create(&object) == 0) handle.object = object;
  });
}

bool multiply_by_blaslt(int32_t gpu, const BatchedProduct& p, void* stream) {
  const Object handle = handles[static_cast<size_t>(gpu)].object;
  if (!handle) return false;
  const Description description(p.b.along, !p.a.along);
  const Matrix b(p.b, p.b.along ? p.cols : p.depth, p.b.along ? p.depth : p.cols, p.batch);
  const Matrix a(p.a, p.a.along ? p.rows : p.depth, p.a.along ? p.depth : p.rows, p.batch);
  const Matrix c(p.c, p.rows, p.cols, p.batch);
  if (!description.good() || !a.good() || !b.good() || !c.good()) return false;
  Choice choice{};
  int count = 0;
  if (blaslt()->choose(handle, description.product(), b.get(), a.get(), c.get(), c.get(), description.wish(), 1,
                       &choice, &count) != 0 ||
      count == 0) {
    return false;
  }
  const float none = 0;
  auto* to = const_cast<void*>(p.c.data);
  return blaslt()->multiply(handle, description.product(), &p.factor, p.b.data, b.get(), p.a.data, a.get(), &none, to,
                            c.get(), to, c.get(), choice.algorithm, nullptr, 0, stream) == 0;
}

}  // namespace tilewise::cuda::standard
