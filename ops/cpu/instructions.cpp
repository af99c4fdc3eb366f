// Names of instruction sets, and what they are to Highway and oneDNN.
#include "ops/cpu/instructions.h"

#include <dnnl.h>
#include <hwy/highway.h>

#include <cstdlib>

#include "core/check.h"

namespace sinkgrad::cpu {
namespace {

struct InstructionSet {
  const char* name;
  int64_t better;  // Highway's targets above it: better ones have lower bits
  dnnl_cpu_isa_t products;
};

constexpr InstructionSet kSets[] = {
    {"sse4", HWY_SSE4 - 1, dnnl_cpu_isa_sse41}, {"avx2", HWY_AVX2 - 1, dnnl_cpu_isa_avx2}, {"avx512", 0, dnnl_cpu_isa_avx512_core}};

}  // namespace

void limit_instructions(const std::string& name) {
  for (const InstructionSet& set : kSets) {
    if (name != set.name) continue;
    hwy::DisableTargets(set.better);
    require<InputError>(dnnl_set_max_cpu_isa(set.products) == dnnl_success, "SINKGRAD_INSTRUCTIONS: must be set before the first matrix product");
    return;
  }
  throw InputError(cat("SINKGRAD_INSTRUCTIONS: must be sse4, avx2 or avx512, got '", name, "'"));
}

void limit_instructions_by_environment() {
  if (const char* name = std::getenv("SINKGRAD_INSTRUCTIONS")) limit_instructions(name);
}

bool has_bf16_instructions() {
#if HWY_ARCH_X86
  // HWY_TARGETS: what the compiler could build kernels for.
  static const bool has = __builtin_cpu_supports("avx512bf16") && (hwy::SupportedTargets() & HWY_TARGETS & HWY_AVX3) != 0;
  return has;
#else
  return false;
#endif
}

}  // namespace sinkgrad::cpu
