// The cases of `sinkgrad bench` and the clock. Work counts what an op must do at least, not what a kernel does.
#include "tools/benchmark.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "core/safetensors.h"
#include "ops/ops.h"

namespace sinkgrad {
namespace {

const std::vector<std::pair<int64_t, int64_t>> kSmallSizes = {{256, 64}, {256, 256}, {64, 1024}, {8, 4096}},
                                               kLargeSizes = {{512, 64}, {256, 256}, {64, 1024}, {16, 4096}, {8, 8192}};

Tensor random_tensor(const Shape& shape, uint64_t seed, Device device) {
  Tensor t(shape);
  RandomStream random(seed, "bench");
  for (float& v : t.span<float>()) v = static_cast<float>(random.uniform(-1, 1));
  return t.to(device);
}

Tensor random_labels(const Shape& shape, int64_t classes, Device device) {
  Tensor t(shape, DType::i32);
  RandomStream random(7, "bench labels");
  for (int32_t& v : t.span<int32_t>()) v = static_cast<int32_t>(random.below(static_cast<uint64_t>(classes)));
  return t.to(device);
}

using Body = Var (*)(std::span<const Var>);

/// A case whose variables have the given shapes. `touched`: how many numbers of 4 bytes forward and backward must move.
BenchCase elementwise(const std::string& name, std::vector<Shape> shapes, double forward_numbers, double backward_numbers, Body body) {
  return {"ops", name, {.bytes = 4 * forward_numbers}, {.bytes = 4 * backward_numbers}, [shapes, body](Device device) -> std::function<Var(Tape&)> {
            auto inputs = std::make_shared<std::vector<Tensor>>();
            for (size_t i = 0; i < shapes.size(); ++i) inputs->push_back(random_tensor(shapes[i], i + 1, device));
            return [inputs, body](Tape& tape) {
              std::vector<Var> vars;
              for (const Tensor& t : *inputs) vars.push_back(tape.variable(t));
              return body(vars);
            };
          }};
}

BenchCase product(const std::string& name, double n, double k, double m) {
  const Shape x{static_cast<int64_t>(n), static_cast<int64_t>(k)}, w{static_cast<int64_t>(m), static_cast<int64_t>(k)}, b{static_cast<int64_t>(m)};
  BenchCase c = elementwise(name, {x, w, b}, n * k + m * k + n * m, 2 * (n * k + m * k) + n * m,
                            [](std::span<const Var> in) { return linear(in[0], in[1], in[2]); });
  c.forward.flops = 2 * n * k * m;
  c.backward.flops = 4 * n * k * m;
  return c;
}

constexpr int64_t kHeadSize = 64, kHeads = 8;
constexpr uint64_t kCotangentSeed = 99;

struct AttentionTensors {
  Tensor q, k, v;
};
AttentionTensors attention_tensors(int64_t matrices, int64_t n, Device device) {
  const Shape shape{matrices / kHeads, n, kHeads * kHeadSize};
  return {random_tensor(shape, 1, device), random_tensor(shape, 2, device), random_tensor(shape, 3, device)};
}
Var attend(Var q, Var k, Var v, int l) { return sinkhorn_attention(q, k, v, kHeads, 1 / std::sqrt(double{kHeadSize}), {.iterations = l}); }

}  // namespace

std::vector<BenchCase> op_cases() {
  constexpr int64_t rows = 8192, width = 1024;
  constexpr double size = double{rows} * width;
  const Shape x{rows, width}, channel{width};
  std::vector<BenchCase> all;
  all.push_back(elementwise("add", {x, x}, 3 * size, 3 * size, [](std::span<const Var> in) { return add(in[0], in[1]); }));
  all.push_back(elementwise("add_bias", {x, channel}, 2 * size, 2 * size, [](std::span<const Var> in) { return add(in[0], in[1]); }));
  all.push_back(elementwise("gelu", {x}, 2 * size, 3 * size, [](std::span<const Var> in) { return gelu(in[0]); }));
  all.push_back(elementwise("sum_columns", {x}, size, size, [](std::span<const Var> in) { return sum(in[0], {0}); }));
  all.push_back(elementwise("transpose", {x}, 2 * size, 2 * size, [](std::span<const Var> in) { return transpose(in[0], 0, 1); }));
  all.push_back(elementwise("softmax", {x}, 2 * size, 3 * size, [](std::span<const Var> in) { return softmax(in[0]); }));
  all.push_back(elementwise("logsumexp", {x}, size, 2 * size, [](std::span<const Var> in) { return logsumexp(in[0]); }));
  all.push_back(
      elementwise("layer_norm", {x, channel, channel}, 2 * size, 3 * size, [](std::span<const Var> in) { return layer_norm(in[0], in[1], in[2]); }));
  all.push_back(elementwise("batch_norm_train", {x, channel, channel}, 2 * size, 3 * size,
                            [](std::span<const Var> in) { return batch_norm_train(in[0], in[1], in[2]); }));
  all.push_back(elementwise("dropout", {x}, 2 * size, 2 * size, [](std::span<const Var> in) { return dropout(in[0], 0.1, 1); }));
  all.push_back(elementwise("sinkhorn l=3", {{256, 128, 128}}, 2.0 * 256 * 128 * 128, 3.0 * 256 * 128 * 128,
                            [](std::span<const Var> in) { return sinkhorn(in[0], {.iterations = 3}); }));
  all.push_back(product("linear 8192x512x2048", 8192, 512, 2048));
  all.push_back(product("linear 3200x128x384", 3200, 128, 384));
  all.push_back({"ops", "cross_entropy", {.bytes = 4 * size}, {.bytes = 8 * size}, [](Device device) -> std::function<Var(Tape&)> {
                   const Tensor logits = random_tensor({rows, width}, 1, device), labels = random_labels({rows}, width, device);
                   return [=](Tape& tape) { return cross_entropy(tape.variable(logits), tape.leaf(labels)); };
                 }});
  all.push_back(
      {"ops", "embedding", {.bytes = 8.0 * 8192 * 512}, {.bytes = 4.0 * (8192 + 30000) * 512}, [](Device device) -> std::function<Var(Tape&)> {
         const Tensor table = random_tensor({30000, 512}, 1, device), tokens = random_labels({8192}, 30000, device);
         return [=](Tape& tape) { return embedding(tape.leaf(tokens), tape.variable(table)); };
       }});
  return all;
}

Work attention_work(double matrices, double n, double d, int l, bool backward, bool resident, double operand_bytes) {
  const double scores = matrices * n * n, sweeps = resident ? 1 : (l + 1) / 2;
  const double operands = matrices * n * d, potentials = 4.0 * matrices * n * (l + 1);
  if (!backward) return {4 * operands * operand_bytes + potentials, scores * d * (resident ? 4.0 : l + 3.0), scores * sweeps};
  return {8 * operands * operand_bytes + potentials, scores * d * (resident ? 10.0 : l + 9.0), scores * sweeps};
}

std::vector<BenchCase> attention_cases(bool small, DeviceKind kind) {
  std::vector<BenchCase> all;
  const auto& sizes = small ? kSmallSizes : kLargeSizes;
  for (const auto& [matrices, n] : sizes)
    for (const int l : {1, 3, 5, 21}) {
      const bool resident = kind == DeviceKind::cpu || n <= 1024;
      const auto count = static_cast<double>(matrices), length = static_cast<double>(n);
      all.push_back({"attention",
                     cat("attention ", matrices, "x", n, " l=", l),
                     attention_work(count, length, kHeadSize, l, false, resident, 4),
                     attention_work(count, length, kHeadSize, l, true, resident, 4),
                     [=, matrices = matrices, n = n](Device device) -> std::function<Var(Tape&)> {
                       return [=, x = attention_tensors(matrices, n, device)](Tape& tape) {
                         return attend(tape.variable(x.q), tape.variable(x.k), tape.variable(x.v), l);
                       };
                     },
                     {{"matrices", count}, {"n", length}, {"d", kHeadSize}, {"l", l}}});
    }
  return all;
}

std::string attention_floors(const DeviceRates& rates) {
  std::string text = fmt::format(
      "Rates of {}: copy {:.2g} B/s, bf16 products {:.3g} FLOP/s, {:.2g} exp/s, {:.3g} FMA/s; bf16 operands; times in microseconds.\n\n"
      "| heads x n | l | pass | MB | GFLOP | Gexp | bytes | products | exp | FMA | floor | over softmax |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|\n",
      rates.name, rates.copy_bytes, rates.bf16_flops, rates.exps, rates.fmas);
  for (const auto& [matrices, n] : kLargeSizes)
    for (const bool backward : {false, true}) {
      double softmax = 0;
      for (const int l : {1, 3, 5, 21}) {
        const auto count = static_cast<double>(matrices), length = static_cast<double>(n);
        const Work w = attention_work(count, length, 64, l, backward, n <= 1024, 2);
        const double fma = (l - 1) * count * length * length,
                     times[] = {w.bytes / rates.copy_bytes, w.flops / rates.bf16_flops, w.exps / rates.exps, fma / rates.fmas};
        const double floor = *std::max_element(std::begin(times), std::end(times));
        if (l == 1) softmax = floor;
        text += fmt::format("| {}x{} | {} | {} | {:.1f} | {:.1f} | {:.2f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | **{:.1f}** | {:.2f} |\n", matrices, n,
                            l, backward ? "bwd" : "fwd", w.bytes / 1e6, w.flops / 1e9, w.exps / 1e9, times[0] * 1e6, times[1] * 1e6, times[2] * 1e6,
                            times[3] * 1e6, floor * 1e6, floor / softmax);
      }
    }
  return text;
}

double Stopwatch::now() const {
  timespec t;
  clock_gettime(processor_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

Timing Stopwatch::operator()(const std::function<void()>& work) const {
  auto run = [&](const std::function<void()>& body) {
    if (!processor_time) return device.backend().seconds(body);
    const double start = now();
    body();
    return now() - start;
  };
  // The first runs fill caches and memory: three of them, but one where they are long.
  double once = run(work);
  for (int i = 0; i < 3 && (i == 0 || once < seconds); ++i) once = run(work);
  // A sample is long enough for the clock and for the launch of the first kernel not to count.
  const int repeats = std::clamp(static_cast<int>(2e-3 / std::max(once, 1e-9)), 1, 1000);
  std::vector<double> samples;
  for (double spent = 0; samples.size() < 3 || (spent < seconds && samples.size() < 200);) {
    const double t = run([&] {
      for (int i = 0; i < repeats; ++i) work();
    });
    spent += t;
    samples.push_back(t / repeats);
  }
  std::sort(samples.begin(), samples.end());
  return {samples[samples.size() / 2], samples[samples.size() / 10], static_cast<int>(samples.size())};
}

BenchResult measure(const BenchCase& c, const Stopwatch& time, Precision precision) {
  const Device device = time.device;
  Tape tape(DType::f32, device);
  if (precision != Precision::full) tape.set_precision(precision);
  const auto step = c.prepare(device);
  BenchResult r;
  Tensor cotangent;
  r.forward = time([&] {
    tape.reset();
    const Var y = step(tape);
    if (!cotangent) cotangent = random_tensor(y.shape(), kCotangentSeed, device);
  });
  r.both = time([&] {
    tape.reset();
    tape.backward(step(tape), cotangent);
    r.tape_bytes = tape.memory().active_bytes();
  });
  return r;
}

void write_values(const BenchCase& attention, Device device, Precision precision, const std::string& path) {
  const std::map<std::string, double> p(attention.parameters.begin(), attention.parameters.end());
  const AttentionTensors x = attention_tensors(static_cast<int64_t>(p.at("matrices")), static_cast<int64_t>(p.at("n")), device);
  Tape tape(DType::f32, device);
  if (precision != Precision::full) tape.set_precision(precision);
  const Var q = tape.variable(x.q), k = tape.variable(x.k), v = tape.variable(x.v), out = attend(q, k, v, static_cast<int>(p.at("l")));
  const Tensor d_out = random_tensor(out.shape(), kCotangentSeed, device);
  tape.backward(out, d_out);
  std::vector<NamedView> views{{"q", x.q.view()},        {"k", x.k.view()},    {"v", x.v.view()},    {"d_out", d_out.view()},
                               {"out", tape.value(out)}, {"dq", tape.grad(q)}, {"dk", tape.grad(k)}, {"dv", tape.grad(v)}};
  std::vector<Tensor> copies;
  for (NamedView& named : views) {
    copies.push_back(Tensor::of<float>(named.view.shape, [&] {
      const std::vector<double> values = to_doubles(named.view, device);
      return std::vector<float>(values.begin(), values.end());
    }()));
    named.view = copies.back().view();
  }
  write_safetensors(path, views);
}

double floor_seconds(const Work& work, const Ceilings& c) { return std::max(work.bytes / c.copy_bytes, work.flops / c.gemm_flops); }

Ceilings measure_ceilings(const Stopwatch& time, Precision precision) {
  const Device device = time.device;
  const bool gpu = device.kind() == DeviceKind::cuda;
  Ceilings c;
  {
    const Tensor from({(gpu ? 1024 : 64) << 18}, DType::f32, device), to(from.shape(), DType::f32, device);
    const Timing t = time([&] { device.backend().copy(to.view().data, from.view().data, from.view().bytes()); });
    c.copy_bytes = 2 * static_cast<double>(from.view().bytes()) / t.median;
  }
  for (const int64_t n : gpu ? std::vector<int64_t>{8192} : std::vector<int64_t>{256, 512, 1024}) {
    const Tensor a = random_tensor({n, n}, 1, device), b = random_tensor({n, n}, 2, device);
    Tape tape(DType::f32, device);
    if (precision != Precision::full) tape.set_precision(precision);
    const Timing t = time([&] {
      tape.reset();
      matmul(tape.leaf(a), tape.leaf(b));
    });
    c.gemm_flops = std::max(c.gemm_flops, 2 * static_cast<double>(n * n * n) / t.median);
  }
  return c;
}

}  // namespace sinkgrad
