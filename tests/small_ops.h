// Small ops for tests of the gradient check: elementwise, with a backward that may be wrong on purpose.
#pragma once
#include "core/gradcheck.h"

namespace sinkgrad {

inline Signature same_shape(std::span<const View> in, const Attrs&) { return in[0].shape; }
inline std::vector<Sample> matrix_sample() { return {{{{{3, 4}}}}}; }
inline std::vector<Sample> vector_sample() { return {{{{{3}}}}}; }

/// f(x) for every element.
template <double f(double)>
void elementwise(const Forward& k) {
  dispatch(k.dtype(), [&]<class T>() {
    for (int64_t i = 0; i < k.out.shape.count(); ++i) k.out.as<T>()[i] = static_cast<T>(f(static_cast<double>(k.in[0].as<T>()[i])));
  });
}

/// gradient(x, i) dy for elements 0 .. count-1 of the gradient.
template <class Derivative>
void elementwise_backward(const Backward& k, int64_t count, Derivative derivative) {
  dispatch(k.dtype(), [&]<class T>() {
    for (int64_t i = 0; i < count; ++i) {
      const T slope = static_cast<T>(derivative(static_cast<double>(k.in[0].as<T>()[i]), i));
      put(k.in_grad[0].as<T>()[i], slope * k.out_grad.as<T>()[i], k.in_grad[0].add);
    }
  });
}

inline double square(double x) { return x * x; }
inline double step(double x) { return x > 0 ? 1 : 0; }

inline OpDef square_op(BackwardKernel* backward, std::vector<Sample> (*samples)() = matrix_sample) {
  return {.name = "square", .min_inputs = 1, .max_inputs = 1, .infer = same_shape, .cpu = {elementwise<square>, backward}, .samples = samples};
}

inline void right_backward(const Backward& k) {
  elementwise_backward(k, k.out.shape.count(), [](double x, int64_t) { return 2 * x; });
}

/// Whether the report has that finding, broken.
inline bool broke(const GradcheckReport& r, const std::string& check) {
  for (const GradcheckFinding& f : r.findings)
    if (f.check == check) return !f.ok;
  return false;
}

}  // namespace sinkgrad
