// The kernels that work on rows and columns (softmax, log-sum-exp, norms, losses) on the host executor, beyond their ops' samples: widths
// up to those that no registers hold, strided lines, many rows, infinities and NaN, gradients that are not wanted, labels out of range.
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "core/gradcheck.h"
#include "core/numbers.h"
#include "core/tape.h"
#include "simt/executor.h"

using namespace sinkgrad;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();
const Attrs kLast{{"axis", -1}}, kFirst{{"axis", 0}}, kMiddle{{"axis", 1}}, kEpsilon{{"epsilon", 1e-5}};
/// Around the bounds between teams: 8, 64 and 256 elements, then blocks up to 4096.
constexpr int64_t kWidths[] = {2, 3, 7, 8, 9, 31, 32, 33, 63, 64, 65, 100, 255, 256, 257, 1023, 1024, 1025, 4096, 4097, 4100};

std::vector<Sample> g_samples;

/// Compares an op with the CPU on samples that would make its gradient check slow.
void check(const char* name, std::vector<Sample> samples) {
  OpDef op = find_op(name);
  g_samples = std::move(samples);
  op.samples = [] { return g_samples; };
  for (size_t s = 0; s < g_samples.size(); ++s) {
    const GradcheckReport r = crosscheck(op, s, Device::cuda());
    INFO(r.text());
    CHECK(r.passed());
  }
}

struct Input {
  Shape shape;
  Numbers values;
  bool integer = false, wanted = true;
};

/// The output, then the gradients.
std::vector<Numbers> evaluate(const char* name, const std::vector<Input>& in, const Attrs& attrs, DType dtype, Device device) {
  Tape tape(dtype, device);
  std::vector<Tensor> memory;
  std::vector<Var> vars;
  for (const Input& i : in) {
    memory.push_back(tensor_of(i.shape, i.integer ? DType::i32 : dtype, i.values).to(device));
    vars.push_back(i.integer || !i.wanted ? tape.leaf(memory.back()) : tape.variable(memory.back()));
  }
  const Var y = tape.apply(find_op(name), vars, attrs);
  std::vector<Numbers> result{to_doubles(tape.value(y), device)};
  Numbers cotangent(result[0].size());
  for (size_t i = 0; i < cotangent.size(); ++i) cotangent[i] = 1.25 + std::sin(3.7 * static_cast<double>(i));
  if (tape.requires_grad(y)) tape.backward(y, tensor_of(y.shape(), dtype, cotangent).to(device));
  for (const Var v : vars)
    if (tape.requires_grad(v)) result.push_back(to_doubles(tape.grad(v), device));
  return result;
}

/// Values of the same kind as those of the CPU in the same type, and close to those of f64 or of that type.
void check_like_cpu(const char* name, std::vector<Input> in, const Attrs& attrs, const std::string& what) {
  for (Input& i : in)
    for (double& v : i.values) v = static_cast<float>(v);
  const auto close = [](double a, double b, double bound) {
    if (!std::isfinite(a) || !std::isfinite(b)) return a == b || (std::isnan(a) && std::isnan(b));
    return std::abs(a - b) <= bound * std::max(1.0, std::abs(b));
  };
  const auto wide = evaluate(name, in, attrs, DType::f64, Device::cpu());
  for (const DType dtype : {DType::f64, DType::f32}) {
    const auto got = evaluate(name, in, attrs, dtype, Device::cuda()), same = evaluate(name, in, attrs, dtype, Device::cpu());
    const double bound = dtype == DType::f64 ? 1e-10 : 1e-4;
    size_t differences = 0;
    std::string first;
    for (size_t k = 0; k < got.size(); ++k)
      for (size_t i = 0; i < got[k].size(); ++i)
        if (!close(got[k][i], same[k][i], bound) && !close(got[k][i], wide[k][i], bound) && differences++ == 0)
          first = cat(k ? "gradient" : "output", " element ", i, " is ", got[k][i], ", on the CPU ", same[k][i]);
    INFO(name << ", " << what << ", " << in[0].shape << " in " << name_of(dtype) << ": " << first);
    CHECK(differences == 0);
  }
}

Numbers wave(int64_t n, double scale = 1, double shift = 0) {
  Numbers v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) v[i] = shift + scale * std::sin(0.7 * static_cast<double>(i * i % 1009) + 0.3 * static_cast<double>(i));
  return v;
}

SampleInput mask(const Shape& shape, size_t every) {
  std::vector<double> v(static_cast<size_t>(shape.count()));
  for (size_t i = 0; i < v.size(); ++i) v[i] = i * 7 % 11 % every == 0;
  return SampleInput::mask(shape, v);
}

/// Lines along every axis; a null mask where `with_mask`.
std::vector<Sample> line_samples(bool with_mask) {
  std::vector<Sample> all;
  auto add = [&](const Shape& shape, const Attrs& axis) {
    Sample s{{{shape}}, axis};
    if (with_mask) s.inputs.push_back(SampleInput::none());
    all.push_back(s);
  };
  for (const int64_t n : kWidths) add({n > 1000 ? 2 : 3, n}, kLast);
  for (const Shape& s : {Shape{1100, 5}, Shape{300, 20}, Shape{37, 130}, Shape{70, 33}}) add(s, kLast);
  for (const Shape& s : {Shape{5, 3}, Shape{40, 3}, Shape{40, 33}, Shape{33, 70}, Shape{200, 2}, Shape{2000, 4}, Shape{1030, 40}}) add(s, kFirst);
  for (const Shape& s : {Shape{3, 50, 5}, Shape{9, 20, 70}}) add(s, kMiddle);
  return all;
}

}  // namespace

TEST_CASE("softmax, log_softmax and logsumexp of lines of every size") {
  check("softmax", line_samples(true));
  check("log_softmax", line_samples(true));
  check("logsumexp", line_samples(false));
}

TEST_CASE("masks along and across lines") {
  for (const char* op : {"softmax", "log_softmax"})
    check(op, {{{{{4, 3, 70}}, mask({4, 1, 70}, 2)}, kLast},
               {{{{4, 3, 70}}, mask({3, 1}, 2)}, kLast},
               {{{{4, 50, 7}}, mask({4, 50, 1}, 3)}, kMiddle},
               {{{{4, 50, 7}}, mask({7}, 3)}, kMiddle},
               {{{{2, 1100}}, mask({1100}, 3)}, kLast},
               {{{{2, 5000}}, mask({2, 5000}, 3)}, kLast},
               {{{{20, 8}}, mask({20, 8}, 3)}, kLast}});
}

TEST_CASE("infinities, NaN and large numbers in lines: what the CPU makes of them") {
  struct Edit {
    const char* what;
    std::function<double(int64_t k, int64_t n, double x)> value;
  };
  const std::vector<Edit> edits = {{"all -inf", [](int64_t, int64_t, double) { return -kInfinity; }},
                                   {"the first 1024 -inf", [](int64_t k, int64_t n, double x) { return k < 1024 && k + 1 < n ? -kInfinity : x; }},
                                   {"one -inf", [](int64_t k, int64_t n, double x) { return k == n - 1 ? -kInfinity : x; }},
                                   {"one +inf", [](int64_t k, int64_t n, double x) { return k == n / 2 ? kInfinity : x; }},
                                   {"two +inf", [](int64_t k, int64_t n, double x) { return k == 0 || k == n - 1 ? kInfinity : x; }},
                                   {"+inf among -inf", [](int64_t k, int64_t n, double) { return k == n - 1 ? kInfinity : -kInfinity; }},
                                   {"NaN", [](int64_t k, int64_t n, double x) { return k == n / 2 ? kNaN : x; }},
                                   {"NaN and +inf", [](int64_t k, int64_t n, double x) { return k == 0       ? kNaN
                                                                                                : k == n - 1 ? kInfinity
                                                                                                             : x; }},
                                   {"large", [](int64_t, int64_t, double x) { return 1e4 * x; }},
                                   {"huge", [](int64_t k, int64_t n, double x) { return k == 0       ? 3e38
                                                                                        : k == n - 1 ? -3e38
                                                                                                     : x; }},
                                   {"equal", [](int64_t, int64_t, double) { return 1000.0; }}};
  for (const int64_t n : {3, 8, 40, 70, 300, 1500, 5000})
    for (const bool strided : {false, true})
      for (const Edit& edit : edits) {
        // Line 1 of 3 is edited.
        Input x{strided ? Shape{n, 3} : Shape{3, n}, wave(3 * n, 2)};
        for (int64_t k = 0; k < n; ++k) {
          double& v = x.values[static_cast<size_t>(strided ? k * 3 + 1 : n + k)];
          v = edit.value(k, n, v);
        }
        Input masked{x.shape, Numbers(x.values.size()), true};
        for (size_t i = 2; i < masked.values.size(); i += 3) masked.values[i] = n != 3;
        const Attrs& axis = strided ? kFirst : kLast;
        check_like_cpu("logsumexp", {x}, axis, edit.what);
        for (const char* op : {"softmax", "log_softmax"}) check_like_cpu(op, {x, masked}, axis, edit.what);
      }
}

TEST_CASE("norms of every size") {
  std::vector<Sample> layer, train, eval;
  auto sample = [](int64_t rows, int64_t n) { return Sample{{{{rows, n}, 3, 9}, {{n}}, {{n}}}, kEpsilon}; };
  for (const int64_t n : kWidths) layer.push_back(sample(n > 1000 ? 2 : 3, n));
  for (const auto& [rows, n] : {std::pair<int64_t, int64_t>{2000, 6}, {700, 40}, {150, 132}, {70, 300}, {20, 4100}}) layer.push_back(sample(rows, n));
  for (const int64_t n : {1, 2, 5, 8, 17, 33, 64, 130, 1025})
    for (const int64_t rows : {3, 9, 65, 300})
      if (rows * n < 10000) train.push_back(sample(rows, n));
  train.push_back(sample(20000, 3));
  train.push_back(sample(3000, 40));
  for (Sample s : train) {
    const Shape channels{s.inputs[0].shape[-1]};
    s.inputs.push_back({.shape = channels, .differentiable = false});
    s.inputs.push_back({.shape = channels, .low = 0.5, .high = 2, .differentiable = false});
    eval.push_back(s);
  }
  check("layer_norm", layer);
  check("batch_norm_train", train);
  check("batch_norm_eval", eval);
}

TEST_CASE("norms without some of their gradients, of nothing, and of data far from zero") {
  auto each = [](const Shape& shape, const Numbers& x, const char* what) {
    const int64_t c = shape[-1];
    for (int unwanted = 0; unwanted < 7; ++unwanted) {
      std::vector<Input> in{{shape, x, false, (unwanted & 1) == 0},
                            {{c}, wave(c, 0.5, 1), false, (unwanted & 2) == 0},
                            {{c}, wave(c, 0.5), false, (unwanted & 4) == 0}};
      check_like_cpu("layer_norm", in, kEpsilon, what);
      if (shape.count() > 0) check_like_cpu("batch_norm_train", in, kEpsilon, what);
      in.push_back({{c}, wave(c), false, false});
      in.push_back({{c}, wave(c, 0.5, 1), false, false});
      check_like_cpu("batch_norm_eval", in, kEpsilon, what);
    }
  };
  for (const Shape& s : {Shape{3, 4}, Shape{5, 33}, Shape{3, 300}, Shape{2, 4500}, Shape{70, 5}}) each(s, wave(s.count()), "gradients");
  each({0, 5}, {}, "no rows");
  each({5, 0}, {}, "no columns");
  each({8, 40}, wave(320, 1e-3, 1000), "offset");  // fault 45
}

TEST_CASE("losses of every size") {
  auto labels = [](int64_t rows, int64_t n, double ignored) {
    std::vector<double> v(static_cast<size_t>(rows));
    for (size_t i = 0; i < v.size(); ++i) v[i] = i % 3 == 1 ? ignored : static_cast<double>(i * 37 % static_cast<size_t>(n));
    return SampleInput::mask({rows}, v);
  };
  auto attrs = [](double smoothing, bool fairseq, double ignored = -100) {
    return Attrs{{"smoothing", smoothing}, {"fairseq", fairseq ? 1.0 : 0.0}, {"ignore_index", ignored}};
  };
  std::vector<Sample> entropy, likelihood, squares;
  for (const int64_t n : kWidths) {
    entropy.push_back({{{{4, n}, -3, 3}, labels(4, n, -100)}, attrs(0, false)});
    entropy.push_back({{{{1, n}, -3, 3}, labels(1, n, -100)}, attrs(0.1, n % 2 == 1)});
  }
  entropy.push_back({{{{3000, 5}, -3, 3}, labels(3000, 5, -100)}, attrs(0.1, false)});
  entropy.push_back({{{{300, 70}, -3, 3}, labels(300, 70, 3)}, attrs(0.1, true, 3)});
  entropy.push_back({{{{50, 500}, -3, 3}, labels(50, 500, -100)}, attrs(1, false)});
  for (const auto& [rows, n] : {std::pair<int64_t, int64_t>{1, 2}, {5, 33}, {300, 33}, {3000, 3}, {5, 1025}})
    likelihood.push_back({{{{rows, n}, -4, 0}, labels(rows, n, -100)}, {{"ignore_index", -100}}});
  for (const int64_t n : {3, 4, 1023, 70001}) squares.push_back({{{{n}}, {{n}}}});
  check("cross_entropy", entropy);
  check("nll", likelihood);
  check("mse", squares);
}

TEST_CASE("cross entropy of infinities, NaN, large logits and ignored rows: what the CPU makes of them") {
  for (const double smoothing : {0.0, 0.1, 1.0})
    for (const int64_t n : {2, 9, 70, 300, 5000}) {
      const Attrs attrs{{"smoothing", smoothing}, {"fairseq", n % 2 == 1 ? 1.0 : 0.0}, {"ignore_index", -100}};
      auto each = [&](const char* what, auto edit) {
        Input x{{4, n}, wave(4 * n, 2)};
        edit(x.values);
        check_like_cpu("cross_entropy", {x, {{4}, {0, -100, static_cast<double>(n - 1), 1}, true}}, attrs, what);
      };
      const auto row = static_cast<size_t>(n);
      each("ignored NaN", [&](Numbers& v) { v[row] = v[row + 1] = kNaN; });
      each("all -inf", [&](Numbers& v) { std::fill_n(v.begin(), row, -kInfinity); });
      each("+inf at the label", [](Numbers& v) { v[0] = kInfinity; });
      each("+inf elsewhere", [](Numbers& v) { v[1] = kInfinity; });
      each("-inf at the label", [](Numbers& v) { v[0] = -kInfinity; });
      each("-inf elsewhere", [](Numbers& v) { v[1] = -kInfinity; });
      each("NaN", [](Numbers& v) { v[1] = kNaN; });
      each("large", [](Numbers& v) {
        for (double& x : v) x = x * 1e3 + 40000;
      });
      each("huge", [](Numbers& v) { v[0] = 3e38, v[1] = -3e38; });
    }
  const Attrs attrs{{"smoothing", 0.1}, {"fairseq", 0}, {"ignore_index", -100}};
  check_like_cpu("cross_entropy", {{{3, 4}, wave(12)}, {{3}, {-100, -100, -100}, true}}, attrs, "all ignored");
  check_like_cpu("cross_entropy", {{{2, 0}, {}}, {{2}, {-100, -100}, true}}, attrs, "no classes");
  check_like_cpu("nll", {{{3, 4}, wave(12)}, {{3}, {-100, -100, -100}, true}}, {{"ignore_index", -100}}, "all ignored");
}

TEST_CASE("a label out of range gives NaN, in the loss and in its row of the gradient") {
  for (const char* op : {"cross_entropy", "nll"})
    for (const double label : {4.0, -1.0, 2e9, -2e9})
      for (const DType dtype : {DType::f64, DType::f32}) {
        const Attrs attrs{{"smoothing", 0.1}, {"fairseq", 0}, {"ignore_index", -100}};
        const auto r = evaluate(op, {{{3, 4}, wave(12)}, {{3}, {1, label, -100}, true}}, attrs, dtype, Device::cuda());
        CHECK(std::isnan(r[0][0]));
        for (size_t i = 0; i < 12; ++i) CHECK(std::isnan(r[1][i]) == (i / 4 == 1));
      }
}
