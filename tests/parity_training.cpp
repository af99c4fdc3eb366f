// Families of parity that train: short Adam runs whose losses and last parameters are compared.
#include <algorithm>
#include <cmath>
#include <map>

#include "nn/optimizer.h"
#include "parity_models.h"

namespace parity {
namespace {

constexpr double kLossTolerance = 1e-4;
constexpr double kNoise = 1e-6;  // f32 rounding of a gradient, relative to its largest entry

/// Batch b of (batches, ...) as another dtype.
Tensor batch_of(const Tensor& batches, int64_t b, DType dtype) {
  Shape shape;
  for (int i = 1; i < batches.shape().rank(); ++i) shape.push_back(batches.shape()[i]);
  const std::vector<double> values = to_doubles(batches.view().rows(b, b + 1));
  if (dtype == DType::i32) return Tensor::of<int32_t>(shape, std::vector<int32_t>(values.begin(), values.end()));
  if (dtype == DType::f32) return Tensor::of<float>(shape, std::vector<float>(values.begin(), values.end()));
  return Tensor::of<double>(shape, values);
}

/// Adds the gradient of the mean cross-entropy over batch b; returns the loss.
double train_on_batch(const Fixture& f, Classifier& model, Tape& tape, int64_t b) {
  const Tensor inputs = batch_of(f.at("in/batches"), b, tape.dtype()), labels = batch_of(f.at("in/labels"), b, DType::i32);
  const Var loss = cross_entropy(model.logits(tape.leaf(inputs)), tape.leaf(labels));
  const double value = to_doubles(tape.value(loss))[0];
  tape.backward(loss);
  tape.reset();
  return value;
}

using Factory = std::unique_ptr<Classifier>(const Fixture&);

double largest(const std::vector<double>& x) {
  double m = 0;
  for (double v : x) m = std::max(m, std::abs(v));
  return m;
}

/// By parameter: which entries have a gradient at the first step that f32 cannot tell from zero. Adam's first step is lr g / (|g| + eps), so
/// there it turns rounding noise into a full step, in torch as here, and the values that follow mean nothing.
std::map<std::string, std::vector<bool>> noise_entries(const Fixture& f, Factory make) {
  const auto model = make(f);
  ParameterPack pack(*model, DType::f64, 1);
  load_parameters(f, *model);
  Tape tape(DType::f64);
  train_on_batch(f, *model, tape, 0);
  const double scale = largest(to_doubles(pack.gradients().view()));
  std::map<std::string, std::vector<bool>> noise;
  for (const Parameter& p : model->parameters()) {
    const std::vector<double> exact = to_doubles(p.grad);
    const double own = largest(exact);
    for (double g : exact) noise[p.name].push_back(own < 1e-12 * scale || (g != 0 && std::abs(g) < kNoise * own));
  }
  return noise;
}

void train(const Fixture& f, Comparison& c, Factory make) {
  const auto model = make(f);
  ParameterPack pack(*model, DType::f32, 1);
  load_parameters(f, *model);
  Optimizer adam(pack, {.beta1 = f.number("betas", 0.9), .beta2 = f.number("betas", 0.999, 1), .epsilon = f.number("eps", 1e-8)});
  Tape tape;
  std::vector<double> losses;
  for (int64_t step = 0; step < f.dim("out/losses", 0); ++step) {
    pack.zero_gradients();
    losses.push_back(train_on_batch(f, *model, tape, step % f.dim("in/batches", 0)));
    adam.step(f.number("lr", 1e-3));
  }
  c.check("out/losses", losses, kLossTolerance);

  const auto noise = noise_entries(f, make);
  for (const Parameter& p : model->parameters()) {
    const std::string key = "final/" + p.name;
    std::vector<double> ours = to_doubles(p.value);
    const std::vector<double> theirs = to_doubles(f.at(key).view());
    const std::vector<bool>& skipped = noise.at(p.name);
    for (size_t i = 0; i < ours.size(); ++i)
      if (skipped[i]) ours[i] = theirs[i];
    if (const auto count = std::count(skipped.begin(), skipped.end(), true))
      c.note(cat(count, " of ", ours.size(), " entries of ", key, " are rounding noise"));
    c.check(key, ours, kTolerance);
  }
}

}  // namespace

std::vector<Family> training_families() {
  return {{"training of vit", [](const Fixture& f) { return f.has("in/batches") && f.has("param/cls_token"); },
           [](const Fixture& f, Comparison& c) { train(f, c, vit_of); }},
          {"training of set transformer", [](const Fixture& f) { return f.has("in/batches") && f.has("param/enc.0.I"); },
           [](const Fixture& f, Comparison& c) { train(f, c, set_transformer_of); }}};
}

}  // namespace parity
