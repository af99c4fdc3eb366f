// Optimizers against trajectories computed with PyTorch, golden first updates of both forms of Adam, and the reach of weight decay.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <regex>

#include "core/parallel.h"
#include "core/safetensors.h"
#include "nn/optimizer.h"

using namespace sinkgrad;
using Kind = OptimizerOptions::Kind;
using Form = OptimizerOptions::Form;

namespace {

/// A module with one parameter "x".
struct Vector : Module {
  explicit Vector(const Shape& shape) : x(parameter("x", shape, Init::constant(0))) {}
  Parameter& x;
};

/// Weights, bias and gain of odd sizes.
struct Net : Module {
  Parameter &weight = parameter("linear.weight", {7, 5}, Init::normal(1)), &bias = parameter("linear.bias", {7}, Init::normal(1), false),
            &gain = parameter("norm.gain", {7}, Init::constant(1), false), &head = parameter("head.weight", {3, 7}, Init::normal(1));
};

std::filesystem::path fixtures() {
  const char* folder = std::getenv("SINKGRAD_FIXTURES");
  return folder ? std::filesystem::path(folder) : std::filesystem::path(SINKGRAD_SOURCE_DIR) / ".." / "shared" / "fixtures";
}

/// The number after "key: " in the printed form of a torch optimizer.
double number_after(const std::string& text, const std::string& key, double otherwise) {
  std::smatch match;
  return std::regex_search(text, match, std::regex(key + R"(: \(?([-+.0-9e]+))")) ? std::stod(match[1]) : otherwise;
}

template <class T>
void follow_trajectory(const SafetensorsFile& file, DType dtype) {
  const std::string text = file.metadata.at("optimizer");
  OptimizerOptions options;
  options.kind = text.starts_with("AdamW") ? Kind::adamw : text.starts_with("Adam") ? Kind::adam : Kind::sgd;
  options.beta1 = number_after(text, "betas", 0.9);
  std::smatch match;
  if (std::regex_search(text, match, std::regex(R"(betas: \([^,]+, ([.0-9]+)\))"))) options.beta2 = std::stod(match[1]);
  options.epsilon = number_after(text, "eps", 1e-8);
  options.momentum = number_after(text, "momentum", 0);
  options.weight_decay = number_after(text, "weight_decay", 0);
  const double lr = number_after(text, "lr", 0);
  REQUIRE(lr > 0);

  const Tensor &x0 = file.tensors.at("x0"), &target = file.tensors.at("target"), &trajectory = file.tensors.at("trajectory");
  Vector model(x0.shape());
  ParameterPack pack(model, dtype, 1);
  Optimizer optimizer(pack, options);
  T *x = model.x.value.as<T>(), *g = model.x.grad.as<T>();
  const int64_t n = x0.count();
  for (int64_t i = 0; i < n; ++i) x[i] = x0.span<float>()[static_cast<size_t>(i)];
  double worst = 0;
  for (int64_t step = 0; step < trajectory.shape()[0]; ++step) {
    for (int64_t i = 0; i < n; ++i) {
      const T d = x[i] - static_cast<T>(target.span<float>()[static_cast<size_t>(i)]);
      g[i] = 3 * d * std::abs(d);
    }
    optimizer.step(lr);
    for (int64_t i = 0; i < n; ++i)
      worst = std::max(worst, std::abs(static_cast<double>(x[i]) - static_cast<double>(trajectory.span<float>()[static_cast<size_t>(step * n + i)])));
  }
  REQUIRE(worst <= 1e-5);
  REQUIRE(x[0] != static_cast<T>(x0.span<float>()[0]));
}

/// update / lr of one scalar after `steps` updates with a constant gradient.
double last_update(Form form, DType dtype, double gradient, int steps) {
  Vector model({1});
  ParameterPack pack(model, dtype, 1);
  OptimizerOptions options;
  options.form = form;
  Optimizer optimizer(pack, options);
  double before = 0, after = 0;
  for (int t = 0; t < steps; ++t) {
    before = to_doubles(model.x.value)[0];
    if (dtype == DType::f32)
      *model.x.grad.as<float>() = static_cast<float>(gradient);
    else
      *model.x.grad.as<double>() = gradient;
    optimizer.step(1e-3);
    after = to_doubles(model.x.value)[0];
  }
  return (before - after) / 1e-3;
}

std::vector<double> updated_values(const OptimizerOptions& options, int thread_count) {
  set_threads(thread_count);
  Vector model({5, 20011});
  ParameterPack pack(model, DType::f32, 1);
  Optimizer optimizer(pack, options);
  for (int step = 0; step < 3; ++step) {
    for (int64_t i = 0; i < model.x.shape.count(); ++i)
      model.x.grad.as<float>()[i] = static_cast<float>(std::sin(static_cast<double>(i * (step + 1))));
    optimizer.step(0.01, clip_scale(gradient_norm(pack), 1));
  }
  set_threads(1);
  return to_doubles(pack.values().view());
}

}  // namespace

TEST_CASE("optimizers follow the trajectories of PyTorch") {
  int found = 0;
  if (std::filesystem::is_directory(fixtures()))
    for (const auto& entry : std::filesystem::directory_iterator(fixtures())) {
      if (!entry.path().filename().string().starts_with("optim_")) continue;
      ++found;
      INFO(entry.path());
      const SafetensorsFile file = read_safetensors(entry.path());
      follow_trajectory<float>(file, DType::f32);
      follow_trajectory<double>(file, DType::f64);
    }
  if (!found) WARN("skipped: no optim_*.safetensors in " << fixtures() << " (set SINKGRAD_FIXTURES)");
}

TEST_CASE("fault 47: epsilon after (torch) or before (fairseq) the bias correction") {
  // With a constant gradient g = eps the corrected moments are g and g^2, so the update is known in closed form for every step.
  for (const DType dtype : {DType::f64, DType::f32})
    for (const int t : {1, 2, 10, 1000}) {
      const double root = std::sqrt(1 - std::pow(0.999, t)), tolerance = dtype == DType::f64 ? 1e-9 : t < 100 ? 1e-5 : 2e-3;
      CAPTURE(t, name_of(dtype));
      CHECK(std::abs(last_update(Form::torch, dtype, 1e-8, t) - 0.5) <= tolerance);
      CHECK(std::abs(last_update(Form::fairseq, dtype, 1e-8, t) - root / (root + 1)) <= tolerance);
    }
  CHECK(last_update(Form::fairseq, DType::f64, 1e-8, 1) == Approx(0.0307).margin(5e-5));
}

TEST_CASE("fault 50: weight decay leaves biases and norm gains alone unless asked") {
  for (const Kind kind : {Kind::sgd, Kind::adam, Kind::adamw})
    for (const bool all : {false, true}) {
      CAPTURE(static_cast<int>(kind), all);
      Net net;
      ParameterPack pack(net, DType::f32, 3);
      const Tensor before = pack.values().clone();
      OptimizerOptions options;
      options.kind = kind;
      options.weight_decay = 0.1;
      options.decay_all = all;
      Optimizer optimizer(pack, options);
      optimizer.step(0.5);  // the gradient is zero
      std::vector<std::string> moved;
      for (const Parameter& p : net.parameters())
        if (to_doubles(p.value) != to_doubles(pack.part(before, p))) moved.push_back(p.name);
      const std::vector<std::string> expected = all ? std::vector<std::string>{"linear.weight", "linear.bias", "norm.gain", "head.weight"}
                                                    : std::vector<std::string>{"linear.weight", "head.weight"};
      CHECK(moved == expected);
      CHECK(optimizer.decayed() == expected);
      if (kind == Kind::adamw) CHECK(net.weight.value.as<float>()[3] == Approx(pack.part(before, net.weight).as<float>()[3] * 0.95));
    }
}

TEST_CASE("optimizers: the gaps between parameters stay zero") {
  Net net;
  ParameterPack pack(net, DType::f32, 3);
  Optimizer optimizer(pack, {.kind = Kind::adamw, .weight_decay = 0.1});
  for (const Parameter& p : net.parameters()) std::fill_n(p.grad.as<float>(), p.shape.count(), 1.f);
  for (int step = 0; step < 3; ++step) optimizer.step(0.1);
  double inside = 0, all = 0;
  for (const Parameter& p : net.parameters())
    for (double x : to_doubles(p.value)) inside += std::abs(x);
  for (double x : to_doubles(pack.values().view())) all += std::abs(x);
  CHECK(all == Approx(inside).epsilon(1e-12));
}

TEST_CASE("gradient norm and clipping") {
  Net net;
  for (const DType dtype : {DType::f32, DType::f64}) {
    ParameterPack pack(net, dtype, 1);
    dispatch(dtype, [&]<class T>() {
      std::fill_n(net.weight.grad.as<T>(), 35, T(2));
      std::fill_n(net.bias.grad.as<T>(), 7, T(-1));
    });
    const double norm = std::sqrt(35 * 4 + 7);
    CHECK(gradient_norm(pack) == Approx(norm).epsilon(1e-6));
    CHECK(clip_scale(norm, 0) == 1);
    CHECK(clip_scale(norm, 20) == 1);
    CHECK(clip_scale(norm, 3) == Approx(3 / norm).epsilon(1e-6));
    // Clipping scales the gradient before the update.
    Optimizer optimizer(pack, {.kind = Kind::sgd});
    const double before = to_doubles(net.weight.value)[0];
    optimizer.step(0.1, clip_scale(norm, 3));
    CHECK(before - to_doubles(net.weight.value)[0] == Approx(0.1 * 2 * 3 / norm).epsilon(1e-4));
    dispatch(dtype, [&]<class T>() { net.gain.grad.as<T>()[6] = std::numeric_limits<T>::quiet_NaN(); });
    CHECK_FALSE(std::isfinite(gradient_norm(pack)));
  }
}

TEST_CASE("optimizers give the same bits for any number of threads") {
  for (const Kind kind : {Kind::sgd, Kind::adam, Kind::adamw}) {
    const OptimizerOptions options{.kind = kind, .momentum = 0.9, .weight_decay = 0.01};
    CHECK(updated_values(options, 1) == updated_values(options, 2));
    CHECK(updated_values(options, 1) == updated_values(options, 3));
  }
}

TEST_CASE("optimizers refuse options out of range by name") {
  Net net;
  ParameterPack pack(net, DType::f32, 1);
  CHECK_THROWS_WITH(Optimizer(pack, {.beta2 = 1}), Catch::Contains("beta must be in [0, 1)"));
  CHECK_THROWS_WITH(Optimizer(pack, {.epsilon = 0}), Catch::Contains("epsilon must be above 0"));
  CHECK_THROWS_WITH(Optimizer(pack, {.kind = Kind::sgd, .momentum = 1}), Catch::Contains("momentum"));
  CHECK_THROWS_WITH(Optimizer(pack, {.weight_decay = -1}), Catch::Contains("weight_decay"));
}
