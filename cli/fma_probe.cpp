#include "cli/fma_probe.h"

#include <cstdint>
#include <numeric>
#include <vector>

#include "cli/stopwatch.h"
#include "core/threads.h"

namespace tilewise::cli {
namespace {

constexpr int64_t kRounds = 200'000;

#if defined(__x86_64__)
// Twelve chains hide the latency (4 or 5 cycles) of two units. Returns FLOPs done.
double avx2_chains() {
  int64_t rounds = kRounds;
  asm volatile(
      "vzeroall\n"
      "1:\n"
      ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11\n vfmadd231ps %%ymm12, %%ymm13, %%ymm\\n\n .endr\n"
      "dec %0\n jnz 1b\n vzeroupper\n"
      : "+r"(rounds)
      :
      : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
        "xmm13", "xmm14", "xmm15", "cc");
  constexpr double kChains = 12, kLanes = 8;
  return 2 * kChains * kLanes * kRounds;
}

double avx512_chains() {
  int64_t rounds = kRounds;
  asm volatile(
      "vzeroall\n"
      "1:\n"
      ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11\n vfmadd231ps %%zmm12, %%zmm13, %%zmm\\n\n .endr\n"
      "dec %0\n jnz 1b\n vzeroupper\n"
      : "+r"(rounds)
      :
      : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
        "xmm13", "xmm14", "xmm15", "cc");
  constexpr double kChains = 12, kLanes = 16;
  return 2 * kChains * kLanes * kRounds;
}
#else
double avx2_chains() { return 0; }
double avx512_chains() { return 0; }
#endif

#if defined(__aarch64__)
// Twenty-four chains hide the latency (4) of four units. Floats are counted as in a vector of sixteen bytes.
double neon_chains() {
  int64_t rounds = kRounds;
  asm volatile(
      "movi v24.4s, #0\n movi v25.4s, #0\n"
      ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n movi v\\n\\().4s, #0\n .endr\n"
      "1:\n"
      ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n"
      "fmla v\\n\\().4s, v24.4s, v25.4s\n .endr\n"
      "subs %0, %0, #1\n b.ne 1b\n"
      : "+r"(rounds)
      :
      : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16",
        "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "cc");
  constexpr double kChains = 24, kLanes = 4;
  return 2 * kChains * kLanes * kRounds;
}

double sve_chains(double lanes) {
  int64_t rounds = kRounds;
  asm volatile(
      ".arch_extension sve\n"
      "ptrue p0.s\n mov z24.s, #0\n mov z25.s, #0\n"
      ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n mov z\\n\\().s, #0\n .endr\n"
      "1:\n"
      ".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n"
      "fmla z\\n\\().s, p0/m, z24.s, z25.s\n .endr\n"
      "subs %0, %0, #1\n b.ne 1b\n"
      ".arch_extension nosve\n"
      : "+r"(rounds)
      :
      : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15", "v16",
        "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "p0", "cc");
  constexpr double kChains = 24;
  return 2 * kChains * lanes * kRounds;
}
#else
double neon_chains() { return 0; }
double sve_chains(double) { return 0; }
#endif

double baseline_chains() {
  using Vec = float __attribute__((vector_size(16)));
  constexpr int kChains = 12, kLanes = 4;
  Vec sums[kChains] = {}, factor = {}, term = {};
  for (int64_t round = 0; round < kRounds; ++round) {
    asm volatile("" : "+m"(factor), "+m"(term));  // the compiler knows nothing of their values
    for (Vec& sum : sums) sum = sum * factor + term;
  }
  for (const Vec& sum : sums) asm volatile("" : : "m"(sum));
  return 2.0 * kChains * kLanes * kRounds;
}

double flops_of_chains(Isa isa) {
  switch (isa) {
    case Isa::avx512:
      return avx512_chains();
    case Isa::avx2:
      return avx2_chains();
    case Isa::neon:
      return neon_chains();
    case Isa::sve128:
      return sve_chains(4);
    case Isa::sve256:
      return sve_chains(8);
    case Isa::sve512:
      return sve_chains(16);
    case Isa::cuda:  // no probe of a GPU
    case Isa::baseline:
      return baseline_chains();
  }
  return 0;
}

double rate_of_this_thread(Isa isa, bool own_cpu_time) {
  const Stopwatch stopwatch(own_cpu_time);
  const double flops = flops_of_chains(isa);
  return flops / stopwatch.seconds();
}

struct Rates {
  Isa isa;
  std::vector<double> of_thread;
};

void probe(void* context, int64_t i) {
  auto& rates = *static_cast<Rates*>(context);
  rates.of_thread[static_cast<size_t>(i)] = rate_of_this_thread(rates.isa, false);
}

}  // namespace

double fma_rate(Isa isa, int threads) {
  if (threads == 1) return rate_of_this_thread(isa, true);
  Rates rates{isa, std::vector<double>(static_cast<size_t>(threads))};
  own_threads()(threads, probe, &rates);
  return std::accumulate(rates.of_thread.begin(), rates.of_thread.end(), 0.0);
}

}  // namespace tilewise::cli
