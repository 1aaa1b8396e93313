#include "cpu/reference/reference.h"

#include "cpu/kernel_row.h"
#include "cpu/kernels.h"

namespace tilewise::cpu {
namespace {

template <Pass OfCall>
class ReferenceCall {
 public:
  static constexpr Pass kPass = OfCall;
  static constexpr Rank kRank = Rank::fallback;
  static constexpr Algorithm kAlgorithm = Algorithm::naive;

  static void refuse(const Problem&, Text&) {}

  ReferenceCall(const Problem& problem, const Settings& settings, char* workspace)
      : problem_(problem), settings_(settings), workspace_(workspace) {}

  Sizing sizing() const {
    return {.query_rows = reference::kRowsOfUnit,
            .chunk_keys = kPass == Pass::backward ? reference::kKeysOfUnit : 0,
            .workspace_bytes = reference::workspace_bytes<double>(problem_, settings_)};
  }

  void run(const Parallel& parallel) const {
    const Launch launch{.workspace = workspace_, .parallel = parallel};
    const reference::Reference<double> reference(problem_, Type::f64, settings_, launch);
    kPass == Pass::forward ? reference.forward() : reference.backward();
  }

 private:
  const Problem& problem_;
  const Settings& settings_;
  char* const workspace_;
};

}  // namespace

const Kernel reference_forward = kernel_row<ReferenceCall<Pass::forward>>("cpu.reference.forward", Isa::baseline);
const Kernel reference_backward = kernel_row<ReferenceCall<Pass::backward>>("cpu.reference.backward", Isa::baseline);

}  // namespace tilewise::cpu
