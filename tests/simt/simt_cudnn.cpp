// cuDNN's batch norm on the host executor, through its stand-in: the same values, saved buffers and gradients as the CPU's kernels, also
// for columns whose mean is far larger than their deviation.
#include <catch2/catch.hpp>

#include "core/numbers.h"
#include "cuda/cudnn.h"
#include "simt/executor.h"

using namespace sinkgrad;

namespace {

Numbers draw(int64_t count, const std::string& stream, double offset = 0) {
  RandomStream random(11, stream);
  Numbers v(static_cast<size_t>(count));
  for (double& x : v) x = static_cast<float>(offset + random.normal());
  return v;
}

/// Output, the three saved buffers, and the gradients of x, gain and bias, which are added to ones.
std::vector<Numbers> batch_norm(const OpDef::Kernels& kernels, DType dtype, const Shape& shape, double offset) {
  const Shape channels{shape[-1]};
  std::vector<Tensor> memory;
  auto place = [&](const Shape& s, const Numbers& values) {
    memory.push_back(tensor_of(s, dtype, values));
    return memory.back().view();
  };
  auto filled = [&](const Shape& s, double value) { return place(s, Numbers(static_cast<size_t>(s.count()), value)); };
  const std::vector<View> in{place(shape, draw(shape.count(), "x", offset)), place(channels, draw(channels.count(), "gain")),
                             place(channels, draw(channels.count(), "bias"))};
  const View out = filled(shape, NAN), out_grad = place(shape, draw(shape.count(), "cotangent"));
  const std::vector<View> saved{filled(channels, NAN), filled(channels, NAN), filled(channels, NAN)};
  const std::vector<Grad> grads{{filled(shape, 1), true}, {filled(channels, 1), true}, {filled(channels, 1), true}};
  const Attrs attrs{{"epsilon", 1e-5}};
  const RandomState random{};
  kernels.forward({in, out, saved, attrs, random});
  kernels.backward({in, out, saved, out_grad, grads, attrs, random});
  std::vector<Numbers> result{to_doubles(out)};
  for (const View& v : saved) result.push_back(to_doubles(v));
  for (const Grad& g : grads) result.push_back(to_doubles(g.view));
  return result;
}

}  // namespace

TEST_CASE("cuDNN's batch norm keeps the contract of the op") {
  const OpDef::Kernels kernels{[](const Forward& f) { REQUIRE(cuda::cudnn_batch_norm_forward(f)); },
                               [](const Backward& b) { REQUIRE(cuda::cudnn_batch_norm_backward(b)); }};
  const OpDef& op = find_op("batch_norm_train");
  const Shape shape{16, 64, 65};
  for (const double offset : {0.0, 1e5}) {
    INFO("columns about " << offset);
    const auto truth = batch_norm(op.cpu, DType::f64, shape, offset), got = batch_norm(kernels, DType::f32, shape, offset);
    for (size_t k = 0; k < got.size(); ++k) {
      INFO("number " << k << " of output, mean, variance, relative mean, gradients of x, gain, bias");
      CHECK(distance({got[k]}, {truth[k]}) <= (k == 0 ? 2e-5 : 1e-5));
    }
  }
}

TEST_CASE("cuDNN declines what does not suit it") {
  const OpDef::Kernels kernels{[](const Forward& f) { CHECK_FALSE(cuda::cudnn_batch_norm_forward(f)); },
                               [](const Backward& b) { CHECK_FALSE(cuda::cudnn_batch_norm_backward(b)); }};
  batch_norm(kernels, DType::f64, {1024, 65}, 0);
  batch_norm(kernels, DType::f32, {100, 65}, 0);
  batch_norm(kernels, DType::f32, {1, 70000}, 0);
}
