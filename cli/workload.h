// Workload: the inputs of one problem in memory. Call: one kernel's way to compute it, with outputs of its own.
#pragma once

#include <memory>
#include <vector>

#include "cli/buffer.h"
#include "cli/gpu.h"
#include "cli/prepared.h"
#include "cli/shape.h"

namespace tilewise::cli {

struct Workload {
  Shape shape;
  ScoreOptions scores;
  Buffer q, k, v, dout;  // row-major in shape.layout

  GpuMemory gpu_q, gpu_k, gpu_v, gpu_dout;  // copies, once fill_randomly or upload is called, for a GPU

  Workload(const Shape& given_shape, const ScoreOptions& given_scores);  // memory, zeroed
  void fill_randomly(uint64_t seed);                                     // uniform in [-1, 1]
  void upload();                                                         // after a change, for a GPU
};

class Call {
 public:
  // Plans and takes memory, which stays untouched until run(). A backward call first computes the out and lse that it
  // reads. Throws Failure with the library's own message.
  Call(const Workload& workload, Pass pass, const PlanOptions& options) : Call(workload, pass, options, Type::none) {}
  // The same in fp64 by the reference kernel.
  static Call oracle(const Workload& workload, Pass pass);

  void run() const { prepared_.run(); }
  void fetch() const;         // outputs of a GPU into those of the host
  int64_t gpu_bytes() const;  // of workspace and outputs there
  const Prepared& prepared() const { return prepared_; }
  const Plan& plan() const { return prepared_.plan(); }
  // On the host, after fetch(). Forward: out, lse. Backward: dq, dk, dv.
  const std::vector<Tensor>& outputs() const { return outputs_; }

 private:
  Call(const Workload& workload, Pass pass, const PlanOptions& options, Type output_type);

  Prepared prepared_;
  std::vector<Buffer> memory_;         // of outputs
  std::vector<GpuMemory> gpu_memory_;  // the same, where the problem writes them
  std::vector<Tensor> outputs_;
  std::unique_ptr<Call> forward_;  // of a backward call: owns the out and lse that it reads
};

// The worst over the outputs of max |x - x64| / max |x64|. NaN if any element is.
double worst_error(const Call& call, const Call& oracle);

}  // namespace tilewise::cli
