// The gradient check over every registered op, the mutants that prove it can fail, and ops that are wrong on purpose.
// An op registered by anybody is checked here without being named.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/gradcheck.h"
#include "ops/ops.h"

using namespace sinkgrad;

namespace {

Signature same_shape(std::span<const View> in, const Attrs&) { return in[0].shape; }
std::vector<Sample> matrix_sample() { return {{{{{3, 4}}}}}; }
std::vector<Sample> vector_sample() { return {{{{{3}}}}}; }

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

double square(double x) { return x * x; }
double step(double x) { return x > 0 ? 1 : 0; }

OpDef square_op(BackwardKernel* backward, std::vector<Sample> (*samples)() = matrix_sample) {
  return {.name = "square", .min_inputs = 1, .max_inputs = 1, .infer = same_shape, .cpu = {elementwise<square>, backward}, .samples = samples};
}

void right_backward(const Backward& k) {
  elementwise_backward(k, k.out.shape.count(), [](double x, int64_t) { return 2 * x; });
}

bool broke(const GradcheckReport& r, const std::string& check) {
  for (const GradcheckFinding& f : r.findings)
    if (f.check == check) return !f.ok;
  return false;
}

}  // namespace

TEST_CASE("every sample of every op passes the gradient check") {
  for (const OpDef* op : registered_ops())
    for (const uint64_t seed : {1, 2, 8})
      for (const GradcheckReport& r : gradcheck(*op, GradcheckOptions{.seed = seed})) {
        INFO(r.text());
        CHECK(r.passed());
      }
}

TEST_CASE("fault 44: every mutant of every backward is caught") {
  for (const OpDef* op : registered_ops()) {
    int applicable = 0;
    for (const GradcheckMutant& m : gradcheck_mutants(*op)) {
      INFO(m.op << ": " << m.mutant);
      CHECK(m.caught == m.applicable);
      applicable += m.applicable;
    }
    INFO(op->name);
    CHECK(applicable >= 8);  // scale, sign, entry, detached, add, overwrite, input, bounds: they fit every op with a gradient
  }
}

TEST_CASE("a right op passes, and a mutant that changes nothing is not called caught") {
  const OpDef op = square_op(right_backward, vector_sample);
  const GradcheckReport r = gradcheck(op, 0);
  INFO(r.text());
  CHECK(r.passed());
  CHECK(r.total_entries == 3);
  for (const GradcheckMutant& m : gradcheck_mutants(op)) {
    INFO(m.mutant);
    const bool changes_nothing = m.mutant == "transposed" || m.mutant == "coupling of elements missing" || m.mutant == "coupling of rows missing" ||
                                 m.mutant == "overwrites the sum of a repeated input";
    CHECK(m.applicable == !changes_nothing);
    CHECK(m.caught == !changes_nothing);
  }
}

TEST_CASE("fault 41: the report names op, place, both values, error, tolerance, counts and seed") {
  const OpDef op = square_op(
      [](const Backward& k) { elementwise_backward(k, k.out.shape.count(), [](double x, int64_t i) { return i == 9 ? 2 * x + 0.5 : 2 * x; }); });
  const GradcheckReport r = gradcheck(op, 0, {.seed = 7});
  CHECK_FALSE(r.passed());
  CHECK(broke(r, "gradient"));
  CHECK(r.bad_entries == 1);
  CHECK(r.total_entries == 12);
  CHECK(r.worst.input == 0);
  CHECK(r.worst.index == std::vector<int64_t>{2, 1});
  CHECK(std::abs(r.worst.analytic - r.worst.numeric) > 1e-3);
  const std::string text = r.text();
  INFO(text);
  for (const char* part : {"square", "(3,4)", "sample 0", "seed 7", "FAIL", "1 of 12 entries", "input 0", "index (2,1)", "analytic", "numeric", "+-",
                           "error", "tolerance 2e-07", "the backward disagrees with central differences"})
    CHECK_THAT(text, Catch::Contains(part));
}

TEST_CASE("fault 38: a gradient larger than its input is refused, naming op and shape") {
  const OpDef op = square_op(
      [](const Backward& k) {
        right_backward(k);
        dispatch(k.dtype(), [&]<class T>() {
          for (int i = 3; i < 12; ++i) k.in_grad[0].as<T>()[i] = T(1);  // as if the input were (4,3)
        });
      },
      vector_sample);
  const GradcheckReport r = gradcheck(op, 0);
  CHECK(broke(r, "stays inside"));
  CHECK_THAT(r.text(), Catch::Contains("square") && Catch::Contains("outside") && Catch::Contains("(3)"));
}

TEST_CASE("fault 38: a missing or partly written gradient fails, wherever the hole is") {
  const OpDef none = square_op([](const Backward&) {});
  CHECK(broke(gradcheck(none, 0), "gradient"));
  const OpDef hole = square_op([](const Backward& k) {
    dispatch(k.dtype(), [&]<class T>() {
      for (int64_t i = 1; i < 12; ++i) put(k.in_grad[0].as<T>()[i], 2 * k.in[0].as<T>()[i] * k.out_grad.as<T>()[i], k.in_grad[0].add);
    });
  });
  const GradcheckReport r = gradcheck(hole, 0);
  CHECK(broke(r, "gradient"));
  CHECK(std::isnan(r.worst.error));
  CHECK(r.worst.index == std::vector<int64_t>{0, 0});
}

TEST_CASE("a sample whose gradient vanishes must say so") {
  const OpDef flat{
      .name = "step",
      .min_inputs = 1,
      .max_inputs = 1,
      .infer = same_shape,
      .cpu = {elementwise<step>, [](const Backward& k) { elementwise_backward(k, k.out.shape.count(), [](double, int64_t) { return 0; }); }},
      .samples = [] {
        return std::vector<Sample>{{{{{3}}}}, {{{{3}}}, {}, true}};
      }};
  CHECK(broke(gradcheck(flat, 0), "not vacuous"));
  CHECK(gradcheck(flat, 1).passed());
  const OpDef wrong_promise = square_op(right_backward, [] { return std::vector<Sample>{{{{{3}}}, {}, true}}; });
  CHECK(broke(gradcheck(wrong_promise, 0), "zero gradient"));
}

TEST_CASE("a tolerance so wide that a scaled gradient would pass is refused") {
  const OpDef lax = square_op(right_backward, [] { return std::vector<Sample>{{.inputs = {{{3}}}, .tolerance = 0.01}}; });
  CHECK(broke(gradcheck(lax, 0), "can fail"));
}

TEST_CASE("bad shapes must throw an error that names the op and every shape") {
  OpDef op = square_op(right_backward);
  op.bad_shapes = [] { return std::vector<std::vector<Shape>>{{{2, 3}}, {{5}}}; };
  op.infer = [](std::span<const View> in, const Attrs&) {
    require<ShapeError>(in[0].shape != Shape{5}, "square: must not have five elements, got ", in[0].shape);
    require<ShapeError>(in[0].shape != Shape({2, 3}), "square: bad shape");
    return Signature(in[0].shape);
  };
  const GradcheckReport r = gradcheck_bad_shapes(op);
  CHECK(broke(r, "bad shapes (2,3)"));
  CHECK_FALSE(broke(r, "bad shapes (5)"));
  CHECK(gradcheck(op).size() == 2);
  CHECK_THROWS_WITH(gradcheck(op, 2), Catch::Contains("square") && Catch::Contains("2"));
}

TEST_CASE("fault 40: f32 inputs of a right function are promoted, pass, and the report says so") {
  const Tensor x = Tensor::of<float>({2, 3}, {0.1f, -0.7f, 0.3f, 1.1f, -0.2f, 0.9f}), w = Tensor::of<float>({4, 3}, std::vector<float>(12, 0.25f)),
               b = Tensor::of<float>({4}, {1, 2, 3, 4});
  const GradcheckReport r = gradcheck("linear", [](Tape&, std::span<const Var> in) { return linear(in[0], in[1], in[2]); }, {x, w, b});
  INFO(r.text());
  CHECK(r.passed());
  CHECK_THAT(r.text(), Catch::Contains("promoted to f64"));
}

TEST_CASE("a user's function is checked like an op: detach inside it is found") {
  const Tensor x = Tensor::of<double>({3}, {0.5, -1, 2});
  const auto right = [](Tape&, std::span<const Var> in) { return mul(in[0], in[0]); };
  const auto wrong = [](Tape& t, std::span<const Var> in) { return mul(in[0], t.detach(in[0])); };
  CHECK(gradcheck("x x", right, {x}).passed());
  const GradcheckReport r = gradcheck("x detach(x)", wrong, {x});
  CHECK(broke(r, "gradient"));
  CHECK(r.bad_entries == 3);
}

TEST_CASE("the same seed gives the same report, another seed another point") {
  const OpDef op = square_op(right_backward);
  CHECK(gradcheck(op, 0).text() == gradcheck(op, 0).text());
  CHECK(gradcheck(op, 0, {.seed = 2}).worst.analytic != gradcheck(op, 0, {.seed = 3}).worst.analytic);
}

#ifdef SINKGRAD_PROGRAM
namespace {

struct Run {
  int code = -1;
  std::string out;
};

Run sinkgrad_gradcheck(const std::string& arguments) {
  Run r;
  FILE* pipe = popen((std::string(SINKGRAD_PROGRAM) + " gradcheck " + arguments + " 2>&1").c_str(), "r");
  REQUIRE(pipe);
  char buffer[4096];
  while (const size_t n = fread(buffer, 1, sizeof buffer, pipe)) r.out.append(buffer, n);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) r.code = WEXITSTATUS(status);
  return r;
}

}  // namespace

TEST_CASE("fault 41: the program reports as JSON, runs a report again, and exits with 1 when a check fails") {
  const auto folder = std::filesystem::temp_directory_path() / ("sinkgrad-test-" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const std::string file = folder / "report.json";
  auto replay = [&](const std::string& content) {
    std::ofstream(file) << content;
    return sinkgrad_gradcheck("--json --replay " + file);
  };

  const Run first = sinkgrad_gradcheck("--op softmax --sample 1 --seed 5 --json");
  INFO(first.out);
  REQUIRE(first.code == 0);
  auto report = nlohmann::json::parse(first.out);
  CHECK(report["op"] == "softmax");
  CHECK(report["seed"] == 5);
  CHECK(report["verdict"] == "PASS");
  CHECK(report["worst"]["index"].size() == 3);
  CHECK(replay(first.out).out == first.out);

  report["tolerance"] = 1e-18;  // so narrow that rounding fails it
  const Run failed = replay(report.dump());
  CHECK(failed.code == 1);
  const auto again = nlohmann::json::parse(failed.out);
  CHECK(again["verdict"] == "FAIL");
  CHECK(again["bad_entries"] > 0);
  CHECK(again["worst"]["analytic"] == report["worst"]["analytic"]);

  report["shapes"] = {{9, 9}};
  for (const std::string& bad : {report.dump(), std::string("not json"), std::string("{\"op\": \"softmax\"}"), std::string("[]")}) {
    const Run r = replay(bad);
    INFO(bad << " -> " << r.out);
    CHECK(r.code == 2);
    CHECK_THAT(r.out, Catch::Contains(file));
  }
  CHECK(sinkgrad_gradcheck("--op softmacks").code == 2);
  CHECK(sinkgrad_gradcheck("--op softmax --sample 99").code == 2);
  CHECK(sinkgrad_gradcheck("--replay " + file + "x").code == 5);
  const Run mutants = sinkgrad_gradcheck("--op add --self-test");
  CHECK(mutants.code == 0);
  CHECK_THAT(mutants.out, Catch::Contains("mutants killed") && !Catch::Contains("SURVIVES"));
  std::filesystem::remove_all(folder);
}
#endif
