// The tape: sums of gradients, life of handles and memory, depth, repetition.
// In-place changes cannot go unnoticed because there are none (fault 29): values are read-only, and the only view is a reshape.
#include <pthread.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <sstream>
#include <type_traits>

#include "core/dump.h"
#include "core/numbers.h"
#include "ops/ops.h"

using namespace sinkgrad;

namespace {

Tensor scalar(double x) { return Tensor::of<double>({}, {x}); }
double number(const View& v) { return to_doubles(v).at(0); }

/// Runs `body` on a thread with a stack of 256 KiB.
void on_small_stack(std::function<void()> body) {
  pthread_attr_t attributes;
  REQUIRE(pthread_attr_init(&attributes) == 0);
  REQUIRE(pthread_attr_setstacksize(&attributes, 256 * 1024) == 0);
  pthread_t thread;
  auto start = [](void* f) -> void* {
    (*static_cast<std::function<void()>*>(f))();
    return nullptr;
  };
  REQUIRE(pthread_create(&thread, &attributes, start, &body) == 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

/// A random graph over two variables, the same for the same seed: every op may take any earlier value, several times.
Var random_graph(uint64_t seed, std::vector<Var> values) {
  RandomStream random(seed, "graph");
  auto any = [&] { return values[random.below(values.size())]; };
  for (int i = 0; i < 12; ++i) {
    switch (random.below(5)) {
      case 0: values.push_back(add(any(), any())); break;
      case 1: values.push_back(sub(any(), any())); break;
      case 2: values.push_back(tanh(mul(any(), any()))); break;
      case 3: values.push_back(scale_shift(any(), 0.7, 0.1)); break;
      default: values.push_back(softmax(any())); break;
    }
  }
  Var total = values.back();
  for (const Var& v : values) total = add(total, v);
  return total;
}

}  // namespace

TEST_CASE("fault 24: a value used several times receives the sum of its gradients") {
  Tape tape(DType::f64);
  const Tensor one = scalar(1);
  Var x = tape.variable(one), a = tape.variable(one);
  Var xa = mul(x, a);
  tape.backward(add(add(mul(x, xa), mul(mul(x, x), a)), mul(x, xa)));
  CHECK(number(tape.grad(x)) == 6);
  CHECK(number(tape.grad(a)) == 3);

  tape.reset();
  a = tape.variable(one);
  Var b = add(a, a), c = add(b, b);
  tape.backward(c);
  CHECK(number(tape.grad(a)) == 4);
}

TEST_CASE("fault 24: gradients of random graphs equal finite differences") {
  for (uint64_t seed = 0; seed < 25; ++seed) {
    RandomStream random(seed, "point");
    std::vector<Numbers> x(2, Numbers(4));
    Numbers w(4);
    for (auto* list : {&x[0], &x[1], &w})
      for (double& v : *list) v = random.normal();
    auto value = [&](const std::vector<Numbers>& at) {
      Tape tape(DType::f64);
      const Tensor p = Tensor::of({4}, at[0]), q = Tensor::of({4}, at[1]);
      double s = 0;
      const auto y = random_graph(seed, {tape.leaf(p), tape.leaf(q)});
      for (size_t i = 0; i < 4; ++i) s += w[i] * y.span<double>()[i];
      return s;
    };
    Tape tape(DType::f64);
    const Tensor p = Tensor::of({4}, x[0]), q = Tensor::of({4}, x[1]);
    const Var leaves[] = {tape.variable(p), tape.variable(q)};
    tape.backward(random_graph(seed, {leaves[0], leaves[1]}), Tensor::of({4}, w));
    for (size_t k = 0; k < 2; ++k)
      for (size_t i = 0; i < 4; ++i) {
        auto up = x, down = x;
        up[k][i] += 1e-5;
        down[k][i] -= 1e-5;
        const double numeric = (value(up) - value(down)) / 2e-5;
        INFO("seed " << seed << " input " << k << " element " << i);
        CHECK(to_doubles(tape.grad(leaves[k]))[i] == Approx(numeric).epsilon(1e-6).margin(1e-7));
      }
  }
}

TEST_CASE("fault 25: two backward calls accumulate into leaves and keep nothing in between") {
  Tape tape(DType::f64);
  const Tensor two = scalar(2);
  Var x = tape.variable(two), square = mul(x, x), y = mul(square, x);
  tape.retain_grad(square);
  tape.backward(y, {.retain = true});
  CHECK(number(tape.grad(x)) == 12);
  CHECK(number(tape.grad(square)) == 2);
  tape.backward(y, {.retain = true});
  CHECK(number(tape.grad(x)) == 24);
  CHECK(number(tape.grad(square)) == 2);
  tape.backward(y);
  CHECK(number(tape.grad(x)) == 36);
  CHECK_THROWS_WITH(tape.backward(y), Catch::Contains("retain") && Catch::Contains("'mul'"));
  CHECK(number(tape.grad(x)) == 36);
}

TEST_CASE("a gradient given from outside is added to, step after step") {
  Tape tape(DType::f64);
  const Tensor x = scalar(3), gradient = scalar(100);
  for (int step = 1; step <= 2; ++step) {
    Var v = tape.leaf(x, gradient);
    tape.backward(mul(v, v));
    CHECK(number(gradient.view()) == 100 + 6 * step);
    tape.reset();
  }
}

TEST_CASE("fault 26: a million repetitions, forward, backward, dump and release on a stack of 256 KiB") {
  const uint64_t baseline = memory_stats().reserved_bytes;
  double value = 0, gradient = 0;
  size_t records = 0, boxes = 0, rows = 0;
  on_small_stack([&] {
    struct Counter : std::streambuf {  // keeps no text: a million lines are long
      explicit Counter(char c) : sought(c) {}
      int overflow(int c) override { return count += c == sought, c; }
      std::streamsize xsputn(const char* s, std::streamsize n) override { return count += static_cast<size_t>(std::count(s, s + n, sought)), n; }
      char sought;
      size_t count = 0;
    };
    Tape tape(DType::f64);
    const Tensor one = scalar(1);
    Var x = tape.variable(one), y = x;
    for (int i = 0; i < 1'000'000; ++i) y = add(y, scale_shift(y, 1e-6, 0));
    value = number(tape.value(y));
    tape.backward(y);
    gradient = number(tape.grad(x));
    records = tape.records().size();
    Counter table('\n'), graph('[');
    std::ostream table_stream(&table), graph_stream(&graph);
    dump_table(table_stream, tape);
    dump_dot(graph_stream, tape);
    rows = table.count;
    boxes = graph.count;
  });
  CHECK(std::abs(value - 2.7182804691) < 1e-9);
  CHECK(std::abs(gradient - 2.7182804691) < 1e-9);
  CHECK(records == 2'000'000);
  CHECK(rows == records + 2);               // a leaf and the heading
  CHECK(boxes == 2 + records + 3'000'000);  // defaults, the leaf, records, edges
  CHECK(memory_stats().reserved_bytes == baseline);
}

TEST_CASE("fault 27: a hundred thousand dropped graphs leave nothing behind") {
  const uint64_t baseline = memory_stats().reserved_bytes;
  {
    Tape tape(DType::f64);
    const Tensor m = Tensor::of<double>({2, 2}, {0.1, 0.2, 0.3, 0.4});
    uint64_t reserved = 0, allocations = 0;
    for (int i = 0; i < 100'000; ++i) {
      Var x = tape.variable(m);
      Var y = matmul(softmax(exp(add(x, x))), sinkhorn(x));
      if (i % 2) tape.backward(y, m);
      tape.reset();
      if (i == 3) {
        reserved = memory_stats().reserved_bytes;
        allocations = memory_stats().system_allocations;
      }
    }
    CHECK(memory_stats().reserved_bytes == reserved);
    CHECK(memory_stats().system_allocations == allocations);
    CHECK(tape.value_count() == 0);
    CHECK(tape.records().empty());
    CHECK(tape.memory().active_bytes() == 0);
  }
  CHECK(memory_stats().reserved_bytes == baseline);
}

TEST_CASE("fault 29: values on the tape are read-only, and a reshape is the only view") {
  Tape tape(DType::f64);
  const Tensor t = Tensor::of<double>({2, 2}, {1, 2, 3, 4});
  Var x = tape.variable(t), y = exp(x), v = tape.reshape(y, {4});
  static_assert(std::is_same_v<decltype(v.span<double>()), std::span<const double>>);
  CHECK(v.span<double>().data() == y.span<double>().data());
  const Var part = slice(v, 0, 0, 2);
  CHECK(part.span<double>().data() != v.span<double>().data());
  const auto before = to_doubles(tape.value(y));
  Var z = scale_shift(v, 1, 1);
  CHECK(to_doubles(tape.value(y)) == before);
  tape.backward(sum(z));
  CHECK(to_doubles(tape.grad(x)) == before);  // d exp(x) = exp(x)
}

TEST_CASE("a handle of an earlier step, of another tape or of nothing is refused") {
  Tape tape(DType::f64), other(DType::f64);
  const Tensor one = scalar(1);
  Var old = tape.variable(one), foreign = other.variable(one);
  tape.reset();
  Var x = tape.variable(one);
  CHECK_THROWS_WITH(mul(x, old), Catch::Contains("mul") && Catch::Contains("step 1; now is step 2"));
  CHECK_THROWS_WITH(tape.value(old), Catch::Contains("reset"));
  CHECK_THROWS_WITH(old.shape(), Catch::Contains("reset"));
  CHECK_THROWS_WITH(tape.backward(old), Catch::Contains("reset"));
  CHECK_THROWS_WITH(mul(x, foreign), Catch::Contains("another tape"));
  CHECK_THROWS_WITH(tape.grad(Var{}), Catch::Contains("empty"));
  CHECK_THROWS_AS(mul(x, Var{}), Error);
  CHECK(tape.records().empty());  // a refused op leaves no trace
}

TEST_CASE("backward refuses what has no gradient, and a cotangent that does not fit") {
  Tape tape(DType::f64);
  const Tensor v = Tensor::of<double>({3}, {1, 2, 3});
  Var constant = tape.leaf(v), x = tape.variable(v);
  CHECK_THROWS_WITH(tape.backward(mul(constant, constant), v), Catch::Contains("depends on no variable") && Catch::Contains("(3)"));
  CHECK_THROWS_WITH(tape.backward(x, v), Catch::Contains("made by an op"));
  Var y = mul(x, x);
  CHECK_THROWS_WITH(tape.backward(y), Catch::Contains("(3)") && Catch::Contains("cotangent"));
  CHECK_THROWS_WITH(tape.backward(y, scalar(1)), Catch::Contains("(3)") && Catch::Contains("()"));
  CHECK_THROWS_WITH(tape.leaf(Tensor(Shape{3}, DType::f32)), Catch::Contains("f64") && Catch::Contains("f32"));
  CHECK_THROWS_WITH(tape.leaf(v, scalar(0)), Catch::Contains("(3)") && Catch::Contains("()"));
}

TEST_CASE("no gradient flows through detach, into constants, or while nothing is recorded") {
  Tape tape(DType::f64);
  const Tensor three = scalar(3);
  Var x = tape.variable(three), c = tape.leaf(three);
  tape.backward(mul(mul(x, tape.detach(x)), c));
  CHECK(number(tape.grad(x)) == 9);
  CHECK_FALSE(tape.grad(c));
  tape.reset();
  tape.set_recording(false);
  CHECK_FALSE(tape.requires_grad(exp(tape.variable(three))));
}

TEST_CASE("gradients pass through reshapes, of leaves and of results, in every order") {
  Tape tape(DType::f64);
  const Tensor t = Tensor::of<double>({2, 3}, {1, 2, 3, 4, 5, 6});
  Var x = tape.variable(t);
  Var flat = tape.reshape(x, {6}), back = tape.reshape(flat, {3, 2});
  Var y = mul(x, tape.reshape(back, {2, 3}));  // x o x through two reshapes
  Var z = add(tape.reshape(y, {6}), flat);
  tape.retain_grad(y);
  tape.backward(tape.reshape(z, {3, 2}), Tensor::of<double>({3, 2}, {1, 1, 1, 1, 1, 2}));
  CHECK(to_doubles(tape.grad(x)) == Numbers{3, 5, 7, 9, 11, 26});
  CHECK(tape.grad(flat).shape == Shape{6});
  CHECK(tape.grad(flat).data == tape.grad(x).data);
  CHECK(to_doubles(tape.grad(y)) == Numbers{1, 1, 1, 1, 1, 2});
  CHECK_THROWS_WITH(tape.reshape(x, {5}), Catch::Contains("(2,3)") && Catch::Contains("(5)"));
}

TEST_CASE("the gradient of an intermediate value is kept on request only, and stays when its memory would be reused") {
  Tape tape(DType::f64);
  const Tensor t = Tensor::of<double>({2}, {0.5, 1});
  Var x = tape.variable(t), a = scale_shift(x, 2, 0), b = scale_shift(a, 3, 0), c = scale_shift(b, 5, 0), d = scale_shift(c, 7, 0);
  tape.retain_grad(b);
  tape.backward(d, Tensor::of<double>({2}, {1, -1}));
  CHECK(to_doubles(tape.grad(b)) == Numbers{35, -35});
  CHECK(to_doubles(tape.grad(x)) == Numbers{210, -210});
  CHECK_FALSE(tape.grad(a));
  CHECK_FALSE(tape.grad(c));
}

TEST_CASE("equal steps have equal traces and, from the third on, equal addresses and no system allocations") {
  Tape tape(DType::f32);
  const Tensor x(Shape{700, 500}), w(Shape{300, 500}), dx(Shape{700, 500}), dw(Shape{300, 500});
  auto step = [&](int64_t rows) {
    Var y = softmax(matmul(tape.leaf(x.view().rows(0, rows), dx.view().rows(0, rows)), tape.leaf(w, dw), false, true));
    tape.backward(mean(mul(y, y)));
    const std::pair<uint64_t, void*> seen{tape.trace(), tape.value(y).data};
    tape.reset();
    return seen;
  };
  step(700);
  step(700);
  const auto third = step(700);
  const uint64_t allocations = memory_stats().system_allocations;
  CHECK(step(700) == third);
  CHECK(step(699).first != third.first);
  CHECK(step(700) == third);
  CHECK(memory_stats().system_allocations == allocations);
}

TEST_CASE("the memory of one step's gradients is not taken for the next step's while values lie there") {
  const Tensor t = Tensor::of<double>({4}, {0.1, 0.2, 0.3, 0.4});
  auto gradient = [&](Tape& tape, int depth) {
    Var x = tape.variable(t), y = x;
    for (int i = 0; i < depth; ++i) y = tanh(y);  // its backward needs its output
    tape.backward(sum(y));
    const Numbers g = to_doubles(tape.grad(x));
    tape.reset();
    return g;
  };
  Tape used(DType::f64), fresh(DType::f64);
  gradient(used, 2);
  CHECK(gradient(used, 20) == gradient(fresh, 20));
}

TEST_CASE("the trace depends on ops and attributes") {
  Tape tape(DType::f64);
  const Tensor one = scalar(1);
  auto trace = [&](auto f) {
    f(tape.leaf(one));
    const uint64_t t = tape.trace();
    tape.reset();
    return t;
  };
  const auto a = trace([](Var x) { scale_shift(x, 1, 2); });
  CHECK(a == trace([](Var x) { scale_shift(x, 1, 2); }));
  CHECK(a != trace([](Var x) { scale_shift(x, 1, 3); }));
  CHECK(trace([](Var x) { exp(x); }) != trace([](Var x) { tanh(x); }));
}

TEST_CASE("an observer sees every record forward, and backward from the end") {
  struct Names : Observer {
    std::string forward, backward;
    void after_forward(const Tape&, const Record& r) override { forward += std::string(r.op->name) + " "; }
    void after_backward(const Tape&, const Record& r, std::span<const Grad>) override { backward += std::string(r.op->name) + " "; }
  } names;
  Tape tape(DType::f64);
  tape.set_observer(&names);
  const Tensor one = scalar(1);
  tape.backward(mul(exp(tape.variable(one)), tape.leaf(one)));
  CHECK(names.forward == "exp mul ");
  CHECK(names.backward == "mul exp ");
}

TEST_CASE("a tape is printed as a table and as a graph") {
  Tape tape(DType::f64);
  const Tensor t = Tensor::of<double>({2, 2}, {1, 2, 3, 4}), c = Tensor::of<double>({2}, {10, 20});
  Var x = tape.variable(t), k = tape.leaf(c);
  Var y = softmax(tape.reshape(add(x, k), {1, 4}), -1);
  std::ostringstream table, graph;
  dump_table(table, tape, {.max_values = 2});
  dump_dot(graph, tape, {.max_values = 4});
  INFO(table.str() << graph.str());
  const auto id = [](Var v) { return "v" + std::to_string(v.id); };
  for (const std::string& part : {"parameter  " + id(x) + "(2,2) f64 32 bytes", "constant   " + id(k) + "(2) f64 16 bytes [10 20]",
                                  id(x) + "(2,2) " + id(k) + "(2)", std::string("softmax"), std::string("axis=-1"), id(y) + "(1,4)"})
    CHECK_THAT(table.str(), Catch::Contains(part));
  CHECK_THAT(table.str(), !Catch::Contains("[1 2 3 4]"));
  for (const std::string& part : {std::string("digraph"), id(x) + " [shape=ellipse, style=filled", "v2 -> " + id(y) + " [label=\"(1,4)\"]",
                                  id(x) + " -> v2 [label=\"(2,2)\"]", std::string("[11 22 13 24]")})
    CHECK_THAT(graph.str(), Catch::Contains(part));
}
