// Element types: f32 to train, f64 to check, i32 and i64 for tokens, labels and masks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

namespace sinkgrad {

enum class DType : uint8_t { f32, f64, i32, i64 };

constexpr size_t size_of(DType t) { return t == DType::f32 || t == DType::i32 ? 4 : 8; }
constexpr bool is_float(DType t) { return t == DType::f32 || t == DType::f64; }
constexpr const char* name_of(DType t) {
  constexpr const char* names[] = {"f32", "f64", "i32", "i64"};
  return names[static_cast<int>(t)];
}

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::f32;
  if constexpr (std::is_same_v<T, double>) return DType::f64;
  if constexpr (std::is_same_v<T, int32_t>) return DType::i32;
  if constexpr (std::is_same_v<T, int64_t>) return DType::i64;
}

/// How matrix products read their f32 operands; sums are f32 always and memory stays f32.
enum class Precision : uint8_t {
  full,  ///< as they are
  tf32,  ///< rounded to 10 bits of mantissa (CUDA only)
  bf16,  ///< rounded to 7 bits of mantissa
};
constexpr const char* name_of(Precision p) {
  constexpr const char* names[] = {"f32", "tf32", "bf16"};
  return names[static_cast<int>(p)];
}
/// The one of that name; any other name is f32.
constexpr Precision precision_named(std::string_view name) {
  return name == name_of(Precision::tf32) ? Precision::tf32 : name == name_of(Precision::bf16) ? Precision::bf16 : Precision::full;
}

/// Calls `f.operator()<float>()` or `f.operator()<double>()`.
template <class F>
decltype(auto) dispatch(DType t, F&& f) {
  return t == DType::f32 ? std::forward<F>(f).template operator()<float>() : std::forward<F>(f).template operator()<double>();
}

}  // namespace sinkgrad
