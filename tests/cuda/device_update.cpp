// The routines of ops/update.h on the device against the CPU. Runs on a GPU and on the host executor.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "core/numbers.h"
#include "core/rng.h"
#include "nn/layers.h"
#include "nn/optimizer.h"

using namespace sinkgrad;
using Kind = OptimizerOptions::Kind;

namespace {

/// Ranges with and without decay, of odd sizes and of several chunks.
struct Net : Module {
  Parameter &weight = parameter("weight", {7, 5}, Init::normal(1)), &bias = parameter("bias", {7}, Init::normal(1), false),
            &large = parameter("large", {3, 2003}, Init::normal(1)), &empty = parameter("empty", {0, 4}, Init::normal(1)),
            &gain = parameter("gain", {1}, Init::constant(1), false);
};

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0, scale = 1e-30;
  for (size_t i = 0; i < a.size(); ++i) {
    worst = std::isnan(a[i]) == std::isnan(b[i]) ? std::max(worst, std::abs(a[i] - b[i])) : INFINITY;
    scale = std::max(scale, std::abs(b[i]));
  }
  return worst / scale;
}

/// A pack with gradients, and its optimizer, on one device.
struct Side {
  Side(const OptimizerOptions& options, DType dtype, Device where) : device(where), pack(net, dtype, 3, where), optimizer(pack, options) {}
  void draw_gradients(uint64_t step) {
    Numbers values(static_cast<size_t>(pack.gradients().count()));
    for (const Parameter& p : net.parameters()) {
      RandomStream random(5, p.name, step);
      const auto first = static_cast<const char*>(p.grad.data) - static_cast<const char*>(pack.gradients().view().data);
      for (int64_t i = 0; i < p.shape.count(); ++i)
        values[static_cast<size_t>(first) / size_of(pack.dtype()) + static_cast<size_t>(i)] = static_cast<float>(random.normal());
    }
    Tensor gradients = pack.gradients();
    gradients.copy_from(tensor_of(gradients.shape(), gradients.dtype(), values));
  }
  std::vector<double> values() const { return to_doubles(pack.values().view(), device); }
  Device device;
  Net net;
  ParameterPack pack;
  Optimizer optimizer;
};

StepState state_after(Device device, const std::function<void(StepState*)>& work, const StepState& before = {}) {
  Resident<StepState> state(device);
  state.write(before);
  work(state.get());
  return state.read();
}

}  // namespace

TEST_CASE("every update rule agrees with the CPU") {
  for (const Kind kind : {Kind::sgd, Kind::adam, Kind::adamw})
    for (const double momentum : {0.0, 0.9})
      for (const auto form : {OptimizerOptions::Form::torch, OptimizerOptions::Form::fairseq})
        for (const DType dtype : {DType::f64, DType::f32}) {
          if (kind == Kind::sgd ? form == OptimizerOptions::Form::fairseq : momentum == 0) continue;
          CAPTURE(static_cast<int>(kind), momentum, static_cast<int>(form), name_of(dtype));
          const OptimizerOptions options{.kind = kind, .momentum = kind == Kind::sgd ? momentum : 0, .weight_decay = 0.05, .form = form};
          Side cpu(options, dtype, Device::cpu()), gpu(options, dtype, Device::cuda());
          CHECK(gpu.values() == cpu.values());  // drawn on the CPU
          for (uint64_t step = 0; step < 3; ++step)
            for (Side* side : {&cpu, &gpu}) {
              side->draw_gradients(step);
              side->optimizer.step(0.1, clip_scale(gradient_norm(side->pack), 2));
            }
          const double bound = dtype == DType::f64 ? 1e-13 : 2e-6;
          CHECK(largest_difference(gpu.values(), cpu.values()) <= bound);
          for (size_t i = 0; i < cpu.optimizer.state().size(); ++i)
            CHECK(largest_difference(to_doubles(gpu.optimizer.state()[i].values.view(), gpu.device),
                                     to_doubles(cpu.optimizer.state()[i].values.view())) <= bound);
        }
}

TEST_CASE("the norm agrees with the CPU, clips, and marks what is not finite") {
  for (const DType dtype : {DType::f64, DType::f32}) {
    Side cpu({}, dtype, Device::cpu()), gpu({}, dtype, Device::cuda());
    for (Side* side : {&cpu, &gpu}) side->draw_gradients(1);
    const auto measured = [](Side& side, double max_norm, double loss) {
      return state_after(side.device, [&](StepState* s) { measure_gradient(side.device, {.gradients = side.pack.gradients().view(), .state = s}); },
                         {.max_norm = max_norm, .loss = loss});
    };
    const double bound = dtype == DType::f64 ? 1e-14 : 1e-6, norm = measured(cpu, 0, 0).gradient_norm;
    for (const double max_norm : {0.0, 1e9, norm / 2}) {
      const StepState expected = measured(cpu, max_norm, 0.5), got = measured(gpu, max_norm, 0.5);
      CHECK(std::abs(got.gradient_norm / expected.gradient_norm - 1) <= bound);
      CHECK(std::abs(got.gradient_scale / expected.gradient_scale - 1) <= bound);
      CHECK(got.loss == 0.5);
      CHECK(measured(gpu, max_norm, 0.5).gradient_norm == got.gradient_norm);
    }
    for (const double loss : {HUGE_VAL, -HUGE_VAL, std::nan("")}) CHECK(std::isnan(measured(gpu, 1, loss).gradient_scale));

    // Then nothing moves.
    const auto before = gpu.values();
    gpu.optimizer.step(0.1, std::nan(""));
    CHECK(gpu.values() == before);
    gpu.device.backend().fill(gpu.net.gain.grad.data, 0xFF, size_of(dtype));
    CHECK(std::isnan(measured(gpu, 0, 0).gradient_norm));
    CHECK(std::isnan(measured(gpu, 0, 0).gradient_scale));
  }
}

TEST_CASE("a module without parameters has norm 0") {
  struct Nothing : Module {
  } nothing;
  const ParameterPack pack(nothing, DType::f32, 1, Device::cuda());
  CHECK(gradient_norm(pack) == 0);
  Optimizer optimizer(pack, {});
  CHECK_NOTHROW(optimizer.step(0.1));
}

TEST_CASE("scores agree with the CPU: ties, values that are not numbers, many classes") {
  const double nan = std::nan("");
  for (const DType dtype : {DType::f64, DType::f32})
    for (const int64_t classes : {1, 3, 31, 32, 33, 100}) {
      CAPTURE(classes);
      const int64_t rows = 37;
      RandomStream random(7, "logits");
      Numbers logits(static_cast<size_t>(rows * classes)), labels;
      for (double& x : logits) x = static_cast<double>(random.below(4));  // with ties
      for (int64_t i = 0; i < rows; ++i) labels.push_back(static_cast<double>(random.below(static_cast<uint64_t>(classes))));
      logits[static_cast<size_t>(labels[0])] = nan;              // row 0 is wrong
      logits[static_cast<size_t>(classes + classes - 1)] = nan;  // row 1 may be right all the same
      logits[static_cast<size_t>(2 * classes) + static_cast<size_t>(labels[2])] = 9;
      const auto scored = [&](Device device, bool add) {
        const Tensor x = tensor_of({rows, classes}, dtype, logits).to(device), y = tensor_of({rows}, DType::i32, labels).to(device),
                     loss = tensor_of({}, dtype, {1.25}).to(device);
        return state_after(device,
                           [&](StepState* s) {
                             score_batch(device, {.logits = x.view(), .labels = y.view(), .loss = loss.view(), .weight = 3, .add = add, .state = s});
                           },
                           {.loss = 10, .correct = 100});
      };
      for (const bool add : {false, true}) {
        const StepState expected = scored(Device::cpu(), add), got = scored(Device::cuda(), add);
        CHECK(got.correct == expected.correct);
        CHECK(got.loss == expected.loss);
        CHECK(got.loss == (add ? 13.75 : 3.75));
        CHECK(got.correct >= (add ? 101 : 1));
      }
    }
}

TEST_CASE("running statistics agree with the CPU") {
  for (const DType dtype : {DType::f64, DType::f32})
    for (const int64_t channels : {0, 1, 300}) {
      const auto moved = [&](Device device) {
        std::vector<Tensor> t;
        for (const char* name : {"mean", "variance", "batch mean", "batch variance"}) {
          RandomStream random(3, name);
          Numbers values(static_cast<size_t>(channels));
          for (double& v : values) v = static_cast<float>(random.uniform(0, 2));
          t.push_back(tensor_of({channels}, dtype, values).to(device));
        }
        update_running_statistics(
            device,
            {.mean = t[0].view(), .variance = t[1].view(), .batch_mean = t[2].view(), .batch_variance = t[3].view(), .count = 9, .momentum = 0.1});
        std::vector<double> all = to_doubles(t[0].view(), device);
        for (double v : to_doubles(t[1].view(), device)) all.push_back(v);
        return all;
      };
      CHECK(largest_difference(moved(Device::cuda()), moved(Device::cpu())) <= (dtype == DType::f64 ? 1e-15 : 1e-7));
    }
}
