// Names of instruction sets, and what they are to Highway and oneDNN.
#include "ops/cpu/instructions.h"

#include <dnnl.h>
#include <hwy/highway.h>
#if HWY_ARCH_X86
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdlib>

#include "core/check.h"

namespace sinkgrad::cpu {
namespace {

enum class Bf16 { emulated, pairs, tiles };

struct InstructionSet {
  const char* name;
  int64_t better;  // Highway's targets above it: better ones have lower bits
  dnnl_cpu_isa_t products;
  Bf16 bf16;
};

constexpr InstructionSet kSets[] = {{"sse4", HWY_SSE4 - 1, dnnl_cpu_isa_sse41, Bf16::emulated},
                                    {"avx2", HWY_AVX2 - 1, dnnl_cpu_isa_avx2, Bf16::emulated},
                                    {"avx512", 0, dnnl_cpu_isa_avx512_core, Bf16::emulated},
                                    {"avx512_bf16", 0, dnnl_cpu_isa_avx512_core_bf16, Bf16::pairs},
                                    {"amx", 0, dnnl_cpu_isa_avx512_core_amx, Bf16::tiles}};

Bf16 bf16_limit = Bf16::tiles;

#if HWY_ARCH_X86
/// Leaf 7 of what the processor says of itself: registers a, b, c, d of a subleaf.
bool feature(unsigned subleaf, int index, int bit) {
  unsigned r[4] = {};
  return __get_cpuid_count(7, subleaf, &r[0], &r[1], &r[2], &r[3]) != 0 && (r[index] >> bit & 1u) != 0;
}
#endif

Bf16 bf16_of_processor() {
#if HWY_ARCH_X86
  // HWY_TARGETS: what the compiler could build kernels for.
  if ((hwy::SupportedTargets() & HWY_TARGETS & HWY_AVX3) == 0 || !feature(1, 0, 5)) return Bf16::emulated;
#ifdef __linux__
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  if (feature(0, 3, 22) && feature(0, 3, 24) && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return Bf16::tiles;
#endif
  return Bf16::pairs;
#else
  return Bf16::emulated;
#endif
}

Bf16 bf16() {
  static const Bf16 best = std::min(bf16_limit, bf16_of_processor());
  return best;
}

}  // namespace

void limit_instructions(const std::string& name) {
  for (const InstructionSet& set : kSets) {
    if (name != set.name) continue;
    hwy::DisableTargets(set.better);
    bf16_limit = set.bf16;
    require<InputError>(dnnl_set_max_cpu_isa(set.products) == dnnl_success, "SINKGRAD_INSTRUCTIONS: must be set before the first matrix product");
    return;
  }
  throw InputError(cat("SINKGRAD_INSTRUCTIONS: must be sse4, avx2, avx512, avx512_bf16 or amx, got '", name, "'"));
}

void limit_instructions_by_environment() {
  if (const char* name = std::getenv("SINKGRAD_INSTRUCTIONS")) limit_instructions(name);
}

std::string instructions() {
  constexpr const char* kBf16[] = {"", " and AVX512_BF16", " and AMX"};
  const int64_t sets = hwy::SupportedTargets() & HWY_TARGETS;  // better ones have lower bits
  return cat(hwy::TargetName(sets & -sets), kBf16[static_cast<int>(bf16())]);
}

bool has_bf16_instructions() { return bf16() != Bf16::emulated; }
bool has_bf16_tiles() { return bf16() == Bf16::tiles; }

}  // namespace sinkgrad::cpu
