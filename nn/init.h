// Initial weights: the distributions that torch and fairseq use, by name.
#pragma once
#include <cmath>
#include <cstdint>

namespace sinkgrad {

struct Init {
  enum class Kind : uint8_t { constant, uniform, normal };
  Kind kind = Kind::constant;
  double scale = 0;       ///< the constant, the bound of a symmetric uniform, or a standard deviation
  int64_t zero_row = -1;  ///< a row that starts at zero, such as the embedding of padding; -1: none

  static Init constant(double value) { return {Kind::constant, value}; }
  static Init uniform(double bound) { return {Kind::uniform, bound}; }
  static Init normal(double deviation) { return {Kind::normal, deviation}; }
  /// torch's Linear and Conv, weight and bias: U(-1/sqrt(fan_in), 1/sqrt(fan_in)).
  static Init torch_linear(int64_t fan_in) { return uniform(fan_in > 0 ? 1 / std::sqrt(static_cast<double>(fan_in)) : 0); }
  /// Glorot and Bengio 2010: U(-b, b) with b = gain sqrt(6 / (fan_in + fan_out)).
  static Init xavier_uniform(int64_t fan_in, int64_t fan_out, double gain = 1) {
    return uniform(gain * std::sqrt(6.0 / static_cast<double>(fan_in + fan_out)));
  }
};

/// Whose defaults the layers of a transformer start from.
enum class InitScheme { torch, fairseq };

}  // namespace sinkgrad
