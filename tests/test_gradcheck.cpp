// The gradient check over every registered op, the mutants that prove it can fail, and ops that are wrong on purpose.
// An op registered by anybody is checked here without being named.
#include <catch2/catch.hpp>
#include <cmath>

#include "ops/ops.h"
#include "small_ops.h"

using namespace sinkgrad;

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
  CHECK(r.inputs.at(0).total == 9);
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
  CHECK(r.inputs.at(0).bad == 1);
  CHECK(r.inputs.at(0).total == 144);
  CHECK(r.worst.input == 0);
  CHECK(r.worst.index == std::vector<int64_t>{2, 1});
  CHECK(r.worst.out_index == std::vector<int64_t>{2, 1});
  CHECK(std::abs(r.worst.analytic - r.worst.numeric) > 1e-3);
  const std::string text = r.text();
  INFO(text);
  for (const char* part : {"square", "x0:f64(3,4)", "cpu", "sample 0", "seed 7", "FAIL", "full Jacobian 12 x 12", "h 2e-04", "input 0",
                           "1 of 144 entries", "worst at dy[2,1]/dx0[2,1]", "analytic", "numeric", "+-", "abs 5.0e-01", "rel",
                           "tolerance 2e-07 of the largest entry", "the backward disagrees with the differences"})
    CHECK_THAT(text, Catch::Contains(part));
  CHECK_THAT(text, !Catch::Contains(" worst:"));  // a list of one would repeat it
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
  CHECK(std::isnan(r.worst.relative));
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
  CHECK(r.inputs.at(0).bad == 3);
  CHECK_THAT(r.text(), Catch::Contains("every wrong entry is 0.5 times what it should be"));
}

TEST_CASE("no factor is claimed where a right derivative is zero, and only wrong entries are listed") {
  const Tensor x = Tensor::of<double>({4}, {0.5, -1, 2, 3}), lost = Tensor::of<double>({4}, {1, 0, 0, 0}),
               invented = Tensor::of<double>({4}, {0, 1, 0, 0}), kept = Tensor::of<double>({4}, {0, 0, 1, 1});
  const auto wrong = [](Tape& t, std::span<const Var> in) {
    const Var constant = t.detach(in[0]);
    return add(add(mul(in[1], constant), mul(in[2], sub(in[0], constant))), mul(in[3], in[0]));
  };
  const GradcheckReport r = gradcheck("lost and invented", wrong, {x, lost, invented, kept});
  INFO(r.text());
  CHECK(r.error.empty());
  CHECK(r.inputs.at(0).bad == 2);
  CHECK_FALSE(r.inputs.at(0).common_factor);
  CHECK_THAT(r.text(), !Catch::Contains("every wrong entry") && Catch::Contains("the 2 worst"));
}

TEST_CASE("the same seed gives the same report, another seed another point") {
  const OpDef op = square_op(right_backward);
  CHECK(gradcheck(op, 0).text() == gradcheck(op, 0).text());
  CHECK(gradcheck(op, 0, {.seed = 2}).worst.analytic != gradcheck(op, 0, {.seed = 3}).worst.analytic);
}
