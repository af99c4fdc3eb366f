// Which vector instructions the CPU code uses.
#pragma once
#include <string>

namespace sinkgrad::cpu {

/// Limits our kernels and oneDNN's products to an instruction set, "sse4", "avx2", "avx512", "avx512_bf16" or "amx", of what the processor has: for
/// tests, and for the same bits on different machines (but for f64 products, which are OpenBLAS's). Before the first op. Throws InputError for other
/// names.
void limit_instructions(const std::string& name);

/// The same with the value of the environment variable SINKGRAD_INSTRUCTIONS, if it is set.
void limit_instructions_by_environment();

/// The best instruction set in use by Highway's name, such as "AVX3" for AVX-512, and what multiplies bf16. Results differ in their last bits between sets.
std::string instructions();

/// Whether the processor multiplies bf16 (AVX512_BF16) and is not limited to less. Without, products in bf16 are products in f32 of rounded operands.
bool has_bf16_instructions();
/// Whether it does so in tiles (AMX), and the operating system lets this process use them.
bool has_bf16_tiles();

}  // namespace sinkgrad::cpu
