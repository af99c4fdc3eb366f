// sinkhorn's kernels on the host executor, beyond the op's samples: sizes on and off chip, scores that would overflow anything but the
// log domain, masks, every gradient, every order of threads. The truth is the CPU in f64; f32 may lose what the CPU's f32 loses.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "core/numbers.h"
#include "core/tape.h"
#include "ops/ops.h"
#include "simt/executor.h"

using namespace sinkgrad;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Case {
  Shape shape;  ///< (B, H, n, m)
  SinkhornOptions options = {};
  Numbers scores = {};  ///< empty: N(0, 1)
  std::vector<int32_t> keys = {}, queries = {}, pairs = {};
  int64_t n() const { return shape[-2]; }
  int64_t m() const { return shape[-1]; }
};

Numbers randn(int64_t count, double scale, const std::string& stream = "scores") {
  RandomStream random(11, stream);
  Numbers v(static_cast<size_t>(count));
  for (double& x : v) x = static_cast<float>(scale * random.normal());
  return v;
}

/// N(0, scale) scores, changed entry by entry.
Numbers scores(const Shape& s, double scale, const std::function<double(int64_t i, int64_t j, double x)>& change = nullptr) {
  Numbers v = randn(s.count(), scale);
  const int64_t n = s[-2], m = s[-1];
  for (size_t k = 0; change && k < v.size(); ++k) {
    const auto at = static_cast<int64_t>(k);
    v[k] = static_cast<float>(change(at / m % n, at % m, v[k]));
  }
  return v;
}

std::vector<int32_t> mask(int64_t count, const std::function<bool(int64_t)>& f) {
  std::vector<int32_t> v(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) v[static_cast<size_t>(i)] = f(i);
  return v;
}

struct Outcome {
  Numbers plan, gradient, row, column, stats;
};

/// Forward and backward; with `hostile`, on misaligned memory and adding to a gradient of ones.
Outcome run(const Case& c, DType dtype, Device device, bool hostile = false) {
  set_memory_poison(true);
  Tape tape(dtype, device);
  std::vector<Tensor> memory;
  auto place = [&](const Shape& shape, DType type, Numbers v) {
    if (hostile) v.insert(v.begin(), 0.0);
    v.push_back(0);
    memory.push_back(tensor_of({static_cast<int64_t>(v.size())}, type, v).to(device));
    return memory.back().view().rows(hostile, hostile + shape.count()).reshaped(shape);
  };
  auto leaf = [&](const std::vector<int32_t>& values, const Shape& shape) {
    return values.empty() ? Var{} : tape.leaf(place(shape, DType::i32, Numbers(values.begin(), values.end())));
  };
  const int64_t batch = c.shape[0], size = c.shape.count();
  const AttentionMasks masks{leaf(c.keys, {batch, c.m()}), leaf(c.queries, {batch, c.n()}), leaf(c.pairs, {c.n(), c.m()})};
  const View value = place(c.shape, dtype, c.scores.empty() ? randn(size, 1) : c.scores);
  const View gradient = place(c.shape, dtype, Numbers(static_cast<size_t>(size), 1));
  const Var x = hostile ? tape.leaf(value, gradient) : tape.variable(value), y = sinkhorn(x, c.options, masks);
  tape.backward(y, tensor_of(c.shape, dtype, randn(size, 1, "cotangent")).to(device));
  Outcome o{to_doubles(tape.value(y), device), to_doubles(hostile ? gradient : tape.grad(x), device), to_doubles(tape.saved(y, 0), device),
            to_doubles(tape.saved(y, 1), device), to_doubles(tape.saved(y, 2), device)};
  if (hostile)
    for (double& g : o.gradient) g -= 1;
  set_memory_poison(false);
  return o;
}

/// The largest difference over the larger of `least` and the largest entry of b. NaN in b, which is memory that was never written,
/// is skipped where `sparse`.
double difference(const Numbers& a, const Numbers& b, double least, bool sparse = false) {
  double worst = 0, scale = least;
  for (size_t i = 0; i < b.size(); ++i) {
    if (sparse && std::isnan(b[i])) continue;
    if (const double e = std::abs(a[i] - b[i]); worse(e, worst)) worst = e;
    if (!(std::abs(b[i]) <= scale)) scale = std::abs(b[i]);
  }
  return worst / scale;
}

/// Largest error of each kind seen so far, as a share of its bound.
struct Seen {
  double plan[2] = {}, gradient[2] = {}, potentials[2] = {};
  ~Seen() {
    if (std::getenv("SINKGRAD_VERBOSE"))
      for (int t : {0, 1})
        std::printf("%s: plan %.2g gradient %.2g potentials %.2g of their bounds\n", t ? "f64" : "f32", plan[t], gradient[t], potentials[t]);
  }
} g_seen;

void compare(const Outcome& got, const Outcome& truth, const Outcome* narrow, DType dtype) {
  const bool wide = dtype == DType::f64;
  auto check = [&](const char* what, auto error, double bound, double* seen) {
    if (narrow) bound = std::max(bound, 4 * error(*narrow));
    const double e = error(got);
    INFO(what << " " << name_of(dtype) << ": error " << e << ", bound " << bound);
    CHECK(e <= bound);
    if (seen && e / bound > *seen) *seen = e / bound;
  };
  check(
      "plan", [&](const Outcome& o) { return difference(o.plan, truth.plan, 1e-3); }, wide ? 1e-11 : 2e-5, &g_seen.plan[wide]);
  check(
      "gradient", [&](const Outcome& o) { return difference(o.gradient, truth.gradient, 1e-2); }, wide ? 1e-9 : 1e-4, &g_seen.gradient[wide]);
  check(
      "row potentials", [&](const Outcome& o) { return difference(o.row, truth.row, 1, true); }, wide ? 1e-11 : 2e-5, &g_seen.potentials[wide]);
  check(
      "column potentials", [&](const Outcome& o) { return difference(o.column, truth.column, 1, true); }, wide ? 1e-11 : 2e-5,
      &g_seen.potentials[wide]);
  auto stat = [&](size_t which) {
    return [&truth, which](const Outcome& o) {
      double worst = 0;
      for (size_t i = which; i < truth.stats.size(); i += 4)
        if (const double e = std::abs(o.stats[i] - truth.stats[i]) / std::max(1.0, truth.stats[i]); worse(e, worst)) worst = e;
      return worst;
    };
  };
  check("half-steps", stat(0), 0, nullptr);
  check("marginal error", stat(1), wide ? 1e-10 : 1e-4, nullptr);
  check("largest entry", stat(2), wide ? 1e-11 : 2e-5, nullptr);
  check("residual", stat(3), wide ? 1e-9 : 1e-6, nullptr);
  for (size_t i = 0; i < truth.plan.size(); ++i)  // exact zeros where nothing can be
    if (truth.plan[i] == 0 && truth.gradient[i] == 0 && wide) CHECK((got.plan[i] == 0 && got.gradient[i] == 0));
}

/// Where a matrix lies, brought about by the limits of the device.
enum class Place { block, cluster, streamed };
void put(Place place, const Case& c, DType dtype) {
  auto& s = simt::settings();
  s.architecture = place == Place::cluster ? 90 : 80;
  s.shared_limit = place == Place::block ? 227 << 10 : static_cast<size_t>(c.n() * c.m()) * size_of(dtype) + 2048;  // too little for one block
}
struct Restore {
  simt::Settings before = simt::settings();
  ~Restore() { simt::settings() = before; }
};

/// Where matrices have lain so far, seen by launches and barriers.
struct Used {
  uint64_t streamed = 0, clusters = 0;
  Used() {
    for (const auto& [name, count] : simt::launch_counts())
      if (name.rfind("streamed_row_step", 0) == 0) streamed += count;
    for (const auto& site : simt::barrier_sites())
      if (site.kind == "cluster_sync") clusters += site.reached;
  }
};

/// Compares with the CPU in both types, written and added; twice to the same bits. Stress: f32 as good as on the CPU is enough.
void check(const Case& c, std::initializer_list<Place> places, bool stress = false) {
  const Restore restore;
  const Outcome truth = run(c, DType::f64, Device::cpu());
  Outcome narrow;
  if (stress) narrow = run(c, DType::f32, Device::cpu());
  for (const Place place : places)
    for (const DType dtype : {DType::f64, DType::f32}) {
      INFO(c.shape << " l = " << c.options.iterations << " gradient " << static_cast<int>(c.options.gradient) << " place "
                   << static_cast<int>(place));
      put(place, c, dtype);
      const Used before;
      const Outcome written = run(c, dtype, Device::cuda()), added = run(c, dtype, Device::cuda(), true);
      const Used after;
      // Rows of more than 2 KiB lie nowhere but in global memory, and so do matrices that are too large for one block if that is all.
      const size_t row = static_cast<size_t>(c.m()) * size_of(dtype), size = row * static_cast<size_t>(c.n());
      const bool streamed = place == Place::streamed || row > 2048 || (place == Place::block && size > 220 << 10);
      CHECK((after.streamed > before.streamed) == streamed);
      CHECK((after.clusters > before.clusters) == (place == Place::cluster && !streamed));
      compare(written, truth, stress ? &narrow : nullptr, dtype);
      CHECK(difference(added.plan, written.plan, 1) == 0);
      CHECK(difference(added.gradient, written.gradient, 1) <= (dtype == DType::f64 ? 1e-14 : 1e-6));
    }
}

constexpr auto kUnrolled = SinkhornGradient::unrolled, kImplicit = SinkhornGradient::implicit, kFrozen = SinkhornGradient::frozen;

/// Small calls that reach every barrier.
std::vector<std::pair<Case, Place>> tour() {
  const Shape s{1, 1, 64, 20}, t{1, 1, 40, 40};
  std::vector<std::pair<Case, Place>> all;
  for (const Place place : {Place::block, Place::cluster, Place::streamed}) {
    all.push_back({{s, {.iterations = 6}}, place});
    all.push_back({{t, {.iterations = 5, .tolerance = 1e-3}}, place});
    all.push_back({{t, {.iterations = 21, .gradient = kImplicit}}, place});
  }
  all.push_back({{{1, 1, 17, 520}, {.iterations = 3}}, Place::streamed});
  return all;
}

}  // namespace

TEST_CASE("the order in which threads run changes nothing") {
  const Restore restore;
  for (const auto& [c, place] : tour()) {
    std::vector<Outcome> outcomes;
    for (const auto schedule : {simt::Schedule::warp_ahead, simt::Schedule::random, simt::Schedule::reverse})
      for (uint64_t seed : {1, 2}) {
        put(place, c, DType::f32);
        simt::settings().schedule = schedule;
        simt::settings().seed = seed;
        outcomes.push_back(run(c, DType::f32, Device::cuda()));
        CHECK(difference(outcomes.back().plan, outcomes[0].plan, 1) == 0);
        CHECK(difference(outcomes.back().gradient, outcomes[0].gradient, 1) == 0);
      }
  }
}

TEST_CASE("sizes: teams, blocks, clusters and stripes that are full, odd or nearly empty") {
  for (const auto& [n, m] : {std::pair<int64_t, int64_t>{1, 1}, {1, 33}, {33, 1}, {7, 8}, {31, 32}, {33, 65}})
    for (int l : {1, 2, 3, 6}) check({{2, 1, n, m}, {.iterations = l}}, {Place::block});
  for (const auto& [n, m] : {std::pair<int64_t, int64_t>{65, 24}, {25, 40}, {17, 129}, {18, 257}})
    for (int l : {1, 4, 5}) check({{1, 2, n, m}, {.iterations = l}}, {Place::block, Place::cluster, Place::streamed});
  check({{1, 1, 300, 130}, {.iterations = 3}}, {Place::block, Place::cluster, Place::streamed});
  for (int l : {1, 2, 5}) check({{1, 1, 18, 520}, {.iterations = l}}, {Place::streamed});  // a block shares a row
  check({{1, 1, 1, 513}, {.iterations = 3}}, {Place::streamed});
}

TEST_CASE("one matrix on a large device: more stripes, and a cluster that it would not need") {
  const Restore restore;
  simt::settings().multiprocessors = 8;
  const Case c{{1, 1, 140, 20}, {.iterations = 3}};
  check(c, {Place::streamed});
  simt::settings().architecture = 90;
  const Used before;
  compare(run(c, DType::f64, Device::cuda()), run(c, DType::f64, Device::cpu()), nullptr, DType::f64);
  CHECK(Used().clusters > before.clusters);
}

TEST_CASE("rows too long for registers") {
  const Shape s{1, 1, 2, 4100};
  const auto keys = mask(4100, [](int64_t j) { return j % 5 == 1; });
  check({s, {.iterations = 5}, {}, keys}, {Place::streamed});
  check({s, {.iterations = 4, .gradient = kFrozen}}, {Place::streamed});
  check({s, {.iterations = 21, .gradient = kImplicit}, scores(s, 0.3), keys}, {Place::streamed});
}

TEST_CASE("frozen and implicit gradients") {
  for (const Shape& s : {Shape{2, 1, 9, 12}, Shape{2, 1, 18, 34}}) {
    const bool small = s[-2] < 16;
    const std::initializer_list<Place> one = {Place::block}, all = {Place::block, Place::cluster, Place::streamed};
    for (int l : {1, 2, 3, 4}) check({s, {.iterations = l, .gradient = kFrozen, .rows_sum_to_inverse_count = true}}, small ? one : all);
    for (int l : {61, 62}) check({s, {.iterations = l, .gradient = kImplicit, .rows_sum_to_inverse_count = l == 61}}, small ? one : all);
  }
  check({{1, 1, 17, 520}, {.iterations = 31, .gradient = kImplicit}, scores({1, 1, 17, 520}, 0.5)}, {Place::streamed});
}

TEST_CASE("scores that only the log domain survives") {
  const Shape s{1, 1, 18, 34};
  std::vector<Numbers> families;
  for (double shift : {-60.0, -85.0, -90.0, -200.0})
    families.push_back(scores(s, 1, [=](int64_t, int64_t j, double x) { return j == 2 ? x + shift : x; }));
  families.push_back(scores(s, 1, [](int64_t i, int64_t, double x) { return i == 1 ? x - 200 : x; }));
  families.push_back(scores(s, 1, [](int64_t i, int64_t j, double x) { return (i < 9) == (j < 9) ? x : x - 100; }));  // nearly decoupled
  families.push_back(scores(s, 1, [](int64_t i, int64_t j, double) { return i > 0 && j == 0 ? 90.0 : 0.0; }));        // a sink
  families.push_back(scores(s, 80));
  families.push_back(scores(s, 1, [](int64_t i, int64_t j, double x) { return x + ((i + j) % 2 ? 1e4 : -1e4); }));
  families.push_back(scores(s, 1, [](int64_t i, int64_t j, double) { return i == j ? 4000.0 : 0.0; }));
  for (size_t f = 0; f < families.size(); ++f)
    for (int l : {1, 3, 4, 21, 51}) {
      INFO("family " << f);
      check({s, {.iterations = l}, families[f]}, {l == 51 ? Place::block : l == 21 ? Place::cluster : Place::streamed}, true);
    }
}

TEST_CASE("masks, scores of -inf, and matrices without a valid entry") {
  const std::initializer_list<Place> all = {Place::block, Place::cluster, Place::streamed};
  const int64_t n = 18, m = 34;
  const Shape s{3, 2, n, m};
  const auto keys = mask(3 * m, [=](int64_t k) { return k / m == 2 || k % m == 3 || k % m > 30; });  // the last batch entry has no key
  const auto queries = mask(3 * n, [=](int64_t k) { return k % n < 2 || (k / n == 1 && k % n > 12); });
  for (int l : {1, 3, 4}) check({s, {.iterations = l, .rows_sum_to_inverse_count = l == 3}, {}, keys, queries}, all);
  for (int l : {3, 4}) check({s, {.iterations = l, .gradient = kFrozen}, {}, keys, queries}, all);
  check({s, {.iterations = 41, .gradient = kImplicit}, {}, keys, queries}, all);
  check({s, {.iterations = 3}, {}, {}, mask(3 * n, [=](int64_t k) { return k / n != 1; })}, all);
  check({s, {.iterations = 1}, {}, keys, {}, mask(n * m, [=](int64_t k) { return k % m > k / m; })}, all);
  for (int l : {1, 3, 4}) {
    const auto holes = [](int64_t i, int64_t j, double x) { return i == 5 || j == 0 || j == 7 ? -kInfinity : x; };
    check({{1, 1, n, m}, {.iterations = l}, scores({1, 1, n, m}, 1, holes)}, all);
    check({{1, 1, 4, 5}, {.iterations = l}, Numbers(20, -kInfinity)}, {Place::block});
  }
}

TEST_CASE("a tolerance stops every matrix by itself") {
  const Shape s{1, 3, 18, 34};
  Numbers x = randn(s.count(), 1);
  for (size_t k = 0; k < x.size(); ++k) x[k] *= static_cast<double>(k / (18 * 34));  // all scores of the first are equal
  for (int l : {8, 31})
    for (const auto gradient : {kUnrolled, kFrozen, kImplicit})
      check({s, {.iterations = l, .tolerance = 0.02, .gradient = gradient}, x}, {Place::block, Place::cluster, Place::streamed});
  check({{1, 1, 18, 520}, {.iterations = 9, .tolerance = 0.5}}, {Place::streamed});
}

TEST_CASE("matrices without elements leave statistics and potentials") {
  for (const Shape& s : {Shape{2, 1, 0, 4}, Shape{2, 1, 3, 0}, Shape{2, 1, 0, 600}, Shape{0, 1, 3, 4}}) {
    const Restore restore;
    const Outcome truth = run({s, {.iterations = 3}}, DType::f64, Device::cpu()), got = run({s, {.iterations = 3}}, DType::f64, Device::cuda());
    INFO(s);
    CHECK(got.stats == truth.stats);
    CHECK(got.row == truth.row);
    CHECK(got.column == truth.column);
  }
}
