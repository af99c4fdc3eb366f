// What the gradient check concludes where there is no plain yes or no: kinks, overflow, cancellation, chance, exceptions; samples too large for
// a full Jacobian; and the step-size curve.
#include <catch2/catch.hpp>
#include <cmath>

#include "ops/ops.h"
#include "small_ops.h"
#include "tools/ui/step_curve.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;

namespace {

double magnitude(double x) { return std::abs(x); }
/// x^2 through a sum that leaves few digits of it.
double cancelling(double x) { return (x * x + 1e7) - 1e7; }
double steep(double x) { return std::exp(x); }

template <double f(double)>
OpDef op_of(const char* name, BackwardKernel* backward, std::vector<Sample> (*samples)()) {
  return {.name = name, .min_inputs = 1, .max_inputs = 1, .infer = same_shape, .cpu = {elementwise<f>, backward}, .samples = samples};
}

void sign_backward(const Backward& k) {
  elementwise_backward(k, k.out.shape.count(), [](double x, int64_t) { return x > 0 ? 1 : -1; });
}

int64_t unverifiable(const GradcheckReport& r) {
  int64_t n = 0;
  for (const GradcheckInput& in : r.inputs) n += in.unverifiable;
  return n;
}

std::vector<Sample> large_sample() { return {{{{{300}}}}}; }

/// Every derivative of the large sample but one is right.
void one_in_300(const Backward& k) {
  elementwise_backward(k, k.out.shape.count(), [](double x, int64_t i) { return 2 * x + (i == 211 ? 0.01 : 0); });
}

}  // namespace

TEST_CASE("verdicts have names and an order, and strictness decides which count as failures") {
  using V = GradcheckVerdict;
  const std::vector<std::pair<V, std::string>> all = {
      {V::pass, "PASS"}, {V::skipped, "SKIPPED"}, {V::unverifiable, "UNVERIFIABLE"}, {V::nondeterministic, "NONDETERMINISTIC"},
      {V::fail, "FAIL"}, {V::error, "ERROR"}};
  for (size_t i = 0; i < all.size(); ++i) {
    CHECK(name_of(all[i].first) == all[i].second);
    CHECK(is_failure(all[i].first) == (i >= 3));
    CHECK(is_failure(all[i].first, true) == (i >= 1));
    if (i > 0) CHECK(all[i - 1].first < all[i].first);
  }
}

TEST_CASE("a kink that cannot be drawn away is unverifiable, and says where") {
  const OpDef op = op_of<magnitude>("magnitude", sign_backward, [] {
    return std::vector<Sample>{{.inputs = {{.shape = {4}, .values = {1, 0, -2, 0.5}}}}};
  });
  const GradcheckReport r = gradcheck(op, 0);
  INFO(r.text());
  CHECK(r.verdict() == GradcheckVerdict::unverifiable);
  CHECK_FALSE(r.passed());
  CHECK_FALSE(is_failure(r.verdict()));
  // Central differences of any step agree on 0 there; only second differences see the kink.
  CHECK(r.inputs[0].unverifiable == 1);
  CHECK(r.inputs[0].least_certain.index == std::vector<int64_t>{1});
  CHECK(r.inputs[0].least_certain.error_bar > 0.5);
  CHECK(r.resampled == 0);  // there is nothing to redraw
  for (const char* part : {"UNVERIFIABLE", "1 of 16 entries cannot be verified", "dy[1]/dx0[1]", "kink"}) CHECK_THAT(r.text(), Contains(part));
}

TEST_CASE("a wrong derivative fails beside a kink") {
  const OpDef op = op_of<magnitude>(
      "magnitude", [](const Backward& k) { elementwise_backward(k, k.out.shape.count(), [](double, int64_t) { return 1; }); },
      [] {
        return std::vector<Sample>{{.inputs = {{.shape = {3}, .values = {1, 0, -2}}}}};
      });
  const GradcheckReport r = gradcheck(op, 0);
  CHECK(r.verdict() == GradcheckVerdict::fail);
  CHECK(r.inputs[0].bad == 1);
  CHECK(r.worst.index == std::vector<int64_t>{2});
}

TEST_CASE("random inputs on a kink are drawn again, and the report says how often") {
  // The kinks of a sawtooth lie so dense that nearly every draw of 200 meets one, but not within the shortest step.
  const OpDef op =
      op_of<magnitude>("magnitude", sign_backward, [] { return std::vector<Sample>{{.inputs = {{.shape = {12}, .low = -1e-6, .high = 1e-6}}}}; });
  const GradcheckReport r = gradcheck(op, 0);
  CHECK(r.resampled == 4);
  CHECK_THAT(r.text(), Contains("inputs were redrawn 4 times"));
}

TEST_CASE("overflow is unverifiable, and an infinite constant is not") {
  const OpDef op = op_of<steep>(
      "exp", [](const Backward& k) { elementwise_backward(k, k.out.shape.count(), [](double x, int64_t) { return std::exp(x); }); },
      [] {
        return std::vector<Sample>{{.inputs = {{.shape = {2}, .values = {1, 709.78271289}}}}};
      });
  const GradcheckReport r = gradcheck(op, 0);
  INFO(r.text());
  CHECK(unverifiable(r) == 1);
  CHECK(std::isinf(r.inputs[0].least_certain.error_bar));
  const Tensor x = Tensor::of<double>({3}, {1, 2, 3}), mask = Tensor::of<int32_t>({3}, {0, 1, 0}), w = Tensor::of<double>({3}, {1, 0, 2});
  const auto masked = gradcheck("masked", [](Tape&, std::span<const Var> in) { return log_softmax(in[0], -1, in[1]); }, {x, mask});
  CHECK(unverifiable(masked) == 0);
  CHECK(masked.inputs[0].bad == 0);
}

TEST_CASE("cancellation is unverifiable, and a wrong gradient is found in spite of it") {
  auto samples = [] { return std::vector<Sample>{{{{{40}}}}}; };
  const GradcheckReport right = gradcheck(op_of<cancelling>("cancelling", right_backward, samples), 0, {.tolerance = 1e-9});
  INFO(right.text());
  CHECK(unverifiable(right) > 0);
  CHECK(right.inputs[0].bad == 0);
  const GradcheckReport wrong = gradcheck(
      op_of<cancelling>(
          "cancelling", [](const Backward& k) { elementwise_backward(k, k.out.shape.count(), [](double x, int64_t) { return 2.2 * x; }); }, samples),
      0, {.tolerance = 1e-9});
  CHECK(wrong.verdict() == GradcheckVerdict::fail);
  CHECK(wrong.inputs[0].bad > 20);
  CHECK_THAT(wrong.text(), Contains("every wrong entry is 1.1 times what it should be"));
}

TEST_CASE("strong curvature is met by shorter steps") {
  const Tensor x = Tensor::of<double>({3}, {2e-4, -1e-4, 3e-4});
  const auto curved = [](Tape&, std::span<const Var> in) { return tanh(scale_shift(in[0], 5000, 0)); };
  const GradcheckReport r = gradcheck("steep tanh", curved, {x});
  INFO(r.text());
  CHECK(unverifiable(r) == 0);
  CHECK(r.inputs[0].bad == 0);
}

TEST_CASE("a kernel that differs from run to run is nondeterministic, whatever else it is") {
  static int calls;
  calls = 0;
  const OpDef op = square_op([](const Backward& k) {
    const double factor = 2 + 1e-3 * ++calls;
    dispatch(k.dtype(), [&]<class T>() {
      for (int64_t i = 0; i < k.out.shape.count(); ++i)
        put(k.in_grad[0].as<T>()[i], static_cast<T>(factor) * k.in[0].as<T>()[i] * k.out_grad.as<T>()[i], k.in_grad[0].add);
    });
  });
  const GradcheckReport r = gradcheck(op, 0);
  CHECK(r.verdict() == GradcheckVerdict::nondeterministic);
  CHECK(broke(r, "repeats"));
  CHECK_THAT(r.text(), Contains("NONDETERMINISTIC"));
  for (const GradcheckFinding& f : r.findings)
    if (f.check == "repeats") CHECK(f.value > 1e-4);  // the largest difference of two runs
}

TEST_CASE("what an op throws is its verdict, with the message") {
  const OpDef op = square_op([](const Backward&) { throw Error("square: no backward yet"); });
  const GradcheckReport r = gradcheck(op, 0);
  CHECK(r.verdict() == GradcheckVerdict::error);
  CHECK(r.error == "square: no backward yet");
  CHECK_THAT(r.text(), Contains("ERROR") && Contains("square: no backward yet"));
  CHECK_THROWS_WITH(gradcheck_curve(op, 0), Contains("square: no backward yet"));
}

TEST_CASE("nothing to check is skipped with the reason") {
  const Tensor labels = Tensor::of<int32_t>({2}, {0, 1});
  const Tensor table = Tensor::of<double>({2, 2}, {1, 2, 3, 4});
  const auto look_up = [&](Tape& t, std::span<const Var> in) { return embedding(in[0], t.leaf(table)); };
  const GradcheckReport r = gradcheck("look up", look_up, {labels});
  CHECK(r.verdict() == GradcheckVerdict::skipped);
  CHECK_THAT(r.text(), Contains("SKIPPED") && Contains("no input has a gradient"));
}

TEST_CASE("a backward that is not linear in the cotangent is found") {
  const OpDef op = square_op([](const Backward& k) {
    dispatch(k.dtype(), [&]<class T>() {
      for (int64_t i = 0; i < k.out.shape.count(); ++i)
        put(k.in_grad[0].as<T>()[i], 2 * k.in[0].as<T>()[i] * std::clamp(k.out_grad.as<T>()[i], T(-50), T(50)), k.in_grad[0].add);
    });
  });
  const GradcheckReport r = gradcheck(op, 0);
  CHECK(r.inputs[0].bad == 0);
  CHECK(broke(r, "linear"));
  CHECK(r.verdict() == GradcheckVerdict::fail);
}

TEST_CASE("beyond the budget random cotangents, directions and elements find one wrong derivative in 300") {
  const OpDef right = square_op(right_backward, large_sample), wrong = square_op(one_in_300, large_sample);
  const GradcheckReport passed = gradcheck(right, 0);
  INFO(passed.text());
  CHECK(passed.passed());
  CHECK_THAT(passed.method, Contains("3 random cotangents w, 3 random directions u of each input and 66 of 300 elements"));
  CHECK(passed.inputs[0].total == 3 * (3 + 66));
  for (const uint64_t seed : {1, 2, 3, 4, 5}) {
    const GradcheckReport failed = gradcheck(wrong, 0, {.seed = seed, .budget = 100});  // three elements only
    INFO(failed.text());
    CHECK(failed.verdict() == GradcheckVerdict::fail);
    CHECK(failed.inputs[0].total == 18);
    CHECK_THAT(failed.worst.place(), Contains("w") && Contains("dy/dx0 u"));
  }
  const GradcheckReport full = gradcheck(wrong, 0, {.budget = 90000});
  CHECK(full.method == "full Jacobian 300 x 300");
  CHECK(full.inputs[0].bad == 1);
  CHECK(full.worst.place() == "dy[211]/dx0[211]");
}

TEST_CASE("the five worst entries come in order, those without a number first") {
  const OpDef op = square_op([](const Backward& k) {
    elementwise_backward(k, k.out.shape.count(),
                         [](double x, int64_t i) { return i == 7 ? NAN : 2 * x + (i < 6 ? 0.1 * static_cast<double>(i) : 0); });
  });
  const auto top = gradcheck(op, 0).inputs[0].top;
  REQUIRE(top.size() == 5);
  CHECK(top[0].place().ends_with("/dx0[1,3]"));
  CHECK(std::isnan(top[0].relative));
  CHECK(std::isnan(top[4].relative));  // NaN times a zero of the cotangent: the whole column of the Jacobian
  const OpDef finite = square_op([](const Backward& k) {
    elementwise_backward(k, k.out.shape.count(), [](double x, int64_t i) { return 2 * x + (i < 6 ? 0.1 * static_cast<double>(i) : 0); });
  });
  std::vector<std::string> places;
  const auto worst = gradcheck(finite, 0).inputs[0].top;
  for (const GradcheckEntry& e : worst) places.push_back(e.place());
  CHECK(places == std::vector<std::string>{"dy[1,1]/dx0[1,1]", "dy[1,0]/dx0[1,0]", "dy[0,3]/dx0[0,3]", "dy[0,2]/dx0[0,2]", "dy[0,1]/dx0[0,1]"});
}

TEST_CASE("the curve of a right op is a V of slopes 2 and -1; of a wrong one it stays where it is") {
  const GradcheckCurve c = gradcheck_curve(find_op("tanh"), 0);
  REQUIRE(c.steps.size() == c.central.size());
  REQUIRE(c.steps.size() == c.extrapolated.size());
  CHECK(c.steps.front() == Approx(0.1));
  CHECK(c.steps.back() == Approx(1e-12));
  const auto at = [&](const std::vector<double>& errors, double step) {
    for (size_t i = 0; i < c.steps.size(); ++i)
      if (std::abs(std::log(c.steps[i] / step)) < 0.1) return errors[i];
    return std::nan("");
  };
  CHECK(std::log10(at(c.central, 1e-1) / at(c.central, 1e-3)) == Approx(4).margin(0.2));            // truncation, h^2
  CHECK(std::log10(at(c.extrapolated, 1e-1) / at(c.extrapolated, 1e-2)) == Approx(4).margin(0.3));  // h^4
  double rounding = 0;                                                                              // an average over the noise
  for (size_t i = 0; i < c.steps.size(); ++i)
    if (c.steps[i] < 1e-10) rounding = std::max(rounding, c.central[i]);
  CHECK(rounding > 1e-6);
  CHECK(at(c.extrapolated, 1e-3) < c.tolerance);

  const GradcheckCurve wrong = gradcheck_curve(
      square_op([](const Backward& k) { elementwise_backward(k, k.out.shape.count(), [](double x, int64_t) { return 2.2 * x; }); }), 0);
  for (size_t i = 0; i < 32; ++i) CHECK(wrong.central[i] == Approx(0.1).epsilon(0.01));
  CHECK(wrong.report.verdict() == GradcheckVerdict::fail);

  const LineChart chart = step_curve(c);
  const std::string svg = line_chart(chart);
  for (const char* part :
       {"aria-label=\"tanh, sample 0", "<desc>", "tolerance 2e", "step of the check", "prefers-color-scheme:dark", "extrapolated from h and h/2"})
    CHECK_THAT(svg, Contains(part));
  CHECK_THAT(line_chart(step_curve(wrong)), Contains("Verdict FAIL"));
  CHECK_THROWS_WITH(gradcheck_curve(find_op("tanh"), 5), Contains("tanh") && Contains("no derivative to compare"));
}
