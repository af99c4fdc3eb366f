// Fused Sinkhorn attention on the host executor, every variant forced in turn: sizes that fill no tile, masks, options, precisions, and
// scores under which a naive scaling overflows. The truth is the CPU in f64 on the same inputs.
#include <catch2/catch.hpp>
#include <cmath>

#include "core/numbers.h"
#include "cuda/attention.h"
#include "cuda/context.h"
#include "ops/ops.h"
#include "simt/executor.h"

using namespace sinkgrad;
using cuda::AttentionVariant;

namespace {

/// What the scores look like.
enum class Family : uint8_t { plain, shifted_column, sink, sharp };

struct Problem {
  int64_t batch = 1, heads = 1, n = 16, m = 16, d = 8, e = 8;
  SinkhornOptions options = {};
  bool keys = false, queries = false, pairs = false, pairs_per_batch = false;  ///< masks
  Family family = Family::plain;
  double size = 1;    ///< of the family: standard deviation of the scores, shift, gap
  bool same = false;  ///< Q, K and V are one tensor
  bool wanted[3] = {true, true, true};
};
struct Setting {
  DType dtype = DType::f64;
  Precision precision = Precision::full;
  AttentionVariant variant = AttentionVariant::block;
  size_t shared_limit = 227 << 10;  ///< a smaller one asks for larger clusters and smaller panels
  int64_t offset = 0;               ///< elements by which inputs and gradients are misaligned
  bool add = false;                 ///< gradients are added to 1
};
struct Result {
  Numbers out, plan, stats;
  std::vector<Numbers> grads;
};

std::vector<Numbers> inputs_of(const Problem& p) {
  RandomStream random(3, "simt attention");
  auto draw = [&](int64_t count, double size) {
    Numbers v(static_cast<size_t>(count));
    for (double& x : v) x = static_cast<float>(size * random.normal());
    return v;
  };
  const int64_t rows_q = p.batch * p.n, rows_k = p.batch * p.m;
  std::vector<Numbers> x = {draw(rows_q * p.heads * p.d, p.family == Family::plain || p.family == Family::sharp ? p.size : 1),
                            draw(rows_k * p.heads * p.d, 1), draw(rows_k * p.heads * p.e, 1)};
  // The first feature is constant in Q, so that in K it shifts columns.
  if (p.family == Family::shifted_column || p.family == Family::sink) {
    for (int64_t r = 0; r < rows_q * p.heads; ++r) x[0][static_cast<size_t>(r * p.d)] = p.family == Family::sink && r / p.heads % p.n == 2 ? 0 : 1;
    for (int64_t r = 0; r < rows_k * p.heads; ++r)
      x[1][static_cast<size_t>(r * p.d)] = r / p.heads % p.m == p.m / 2 ? p.size * std::sqrt(static_cast<double>(p.d)) : 0;
  }
  if (p.same) x.resize(1);
  return x;
}
Numbers mask_of(int64_t count, int64_t every, int64_t first) {
  Numbers v(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) v[static_cast<size_t>(i)] = i % every == first;
  return v;
}

Result run(const Problem& p, DType dtype, Device device, const Setting& s) {
  set_memory_poison(true);
  Tape tape(dtype, device);
  if (s.precision != Precision::full && device.kind() == DeviceKind::cuda) tape.set_precision(s.precision);
  std::vector<Tensor> memory;
  auto place = [&](const Shape& shape, const Numbers& v, DType type) {
    Numbers all(static_cast<size_t>(s.offset), 0);
    all.insert(all.end(), v.begin(), v.end());
    all.push_back(0);
    memory.push_back(tensor_of({static_cast<int64_t>(all.size())}, type, all).to(device));
    return memory.back().view().rows(s.offset, s.offset + shape.count()).reshaped(shape);
  };
  const Shape shapes[] = {{p.batch, p.n, p.heads * p.d}, {p.batch, p.m, p.heads * p.d}, {p.batch, p.m, p.heads * p.e}};
  std::vector<Var> vars;
  std::vector<View> gradients;
  const auto values = inputs_of(p);
  for (size_t k = 0; k < values.size(); ++k) {
    const View value = place(shapes[k], values[k], dtype);
    gradients.push_back(place(shapes[k], Numbers(values[k].size(), s.add ? 1 : 0), dtype));
    vars.push_back(!p.wanted[k] ? tape.leaf(value) : s.add ? tape.leaf(value, gradients.back()) : tape.variable(value));
  }
  AttentionMasks masks;
  if (p.keys) masks.key_is_padding = tape.leaf(place({p.batch, p.m}, mask_of(p.batch * p.m, 5, 1), DType::i32));
  if (p.queries) masks.query_is_padding = tape.leaf(place({p.batch, p.n}, mask_of(p.batch * p.n, 7, 3), DType::i32));
  if (p.pairs) {
    Numbers hidden(static_cast<size_t>((p.pairs_per_batch ? p.batch : 1) * p.n * p.m));
    for (size_t k = 0; k < hidden.size(); ++k) {
      const auto i = static_cast<int64_t>(k) / p.m % p.n, j = static_cast<int64_t>(k) % p.m, b = static_cast<int64_t>(k) / (p.n * p.m);
      hidden[k] = i == 3 || j > i + b;  // a row that sees nothing, and columns that nobody sees
    }
    const Shape shape = p.pairs_per_batch ? Shape{p.batch, p.n, p.m} : Shape{p.n, p.m};
    masks.pair_is_hidden = tape.leaf(place(shape, hidden, DType::i32));
  }
  const Var q = vars[0], k = p.same ? q : vars[1], v = p.same ? q : vars[2];
  const double scale = 1 / std::sqrt(static_cast<double>(p.d));
  const Var o = sinkhorn_attention(q, k, v, static_cast<int>(p.heads), scale, p.options, masks);
  RandomStream random(5, "simt attention/cotangent");
  Numbers w(static_cast<size_t>(o.shape().count()));
  for (double& x : w) x = static_cast<float>(random.normal());
  Result r{.out = to_doubles(tape.value(o), device), .stats = to_doubles(tape.saved(o, 2), device)};
  if (p.options.expose_plan) r.plan = to_doubles(attention_plan(o), device);
  tape.backward(o, place(o.shape(), w, dtype), Tape::BackwardOptions{});
  for (size_t i = 0; i < vars.size(); ++i)
    if (p.wanted[i]) r.grads.push_back(to_doubles(s.add ? gradients[i] : tape.grad(vars[i]), device));
  return r;
}

/// Sets the executor up for a variant and, at the end, back.
class Forced {
 public:
  explicit Forced(const Setting& s) : variant_(cuda::forced_attention_variant()), settings_(simt::settings()) {
    cuda::forced_attention_variant() = s.variant;
    simt::settings().shared_limit = s.shared_limit;
    if (s.variant == AttentionVariant::block) simt::settings().architecture = 80;
  }
  ~Forced() {
    cuda::forced_attention_variant() = variant_;
    simt::settings() = settings_;
  }

 private:
  AttentionVariant variant_;
  simt::Settings settings_;
};

struct Errors {
  double out = 0, grads = 0, stats = 0;
};
Errors errors_of(const Result& got, const Result& truth, double share) {
  Errors e{.out = distance({got.out, got.plan}, {truth.out, truth.plan})};
  // Of a gradient that vanishes, as that of scores with one column, only rounding is left.
  const double floor = share * std::max(largest(truth.grads), largest(truth.out));
  for (size_t k = 0; k < truth.grads.size(); ++k) {
    const double scale = largest(truth.grads[k]),
                 error = distance({got.grads[k]}, {truth.grads[k]}) * std::max(scale, 1e-30) / std::max(scale, floor);
    if (worse(error, e.grads)) e.grads = error;
  }
  for (size_t i = 0; i < truth.stats.size(); i += 4) {
    if (truth.stats[i] != got.stats[i]) e.stats = 1;
    for (size_t k = i + 1; k < i + 3; ++k) {
      const double error = std::abs(got.stats[k] - truth.stats[k]) / std::max(1.0, truth.stats[k]);
      if (worse(error, e.stats)) e.stats = error;
    }
  }
  return e;
}

std::string name_of(const Problem& p, const Setting& s) {
  const char* families[] = {"plain", "shifted column", "sink", "sharp"};
  return cat("(", p.batch, " x ", p.heads, ") ", p.n, " x ", p.m, ", d ", p.d, ", e ", p.e, ", l ", p.options.iterations, " ",
             families[static_cast<int>(p.family)], " ", p.size, ", variant ", static_cast<int>(s.variant), ", ", sinkgrad::name_of(s.dtype), "/",
             sinkgrad::name_of(s.precision), ", limit ", s.shared_limit, ", offset ", s.offset, p.keys ? ", keys" : "", p.queries ? ", queries" : "",
             p.pairs ? ", pairs" : "", p.options.tolerance > 0 ? ", tolerance" : "", p.options.gradient == SinkhornGradient::frozen ? ", frozen" : "",
             p.options.rows_sum_to_inverse_count ? ", inverse count" : "", p.same ? ", same" : "");
}

/// Rounded operands: relative to the largest entry, a product of rounded numbers errs by about their rounding; gradients pass several.
/// Scores of stress are hard for any f32, so that of the CPU is the measure.
void check(const Problem& p, const Setting& s) {
  INFO(name_of(p, s));
  const Result truth = run(p, DType::f64, Device::cpu(), {.add = s.add});
  Errors e, cpu;
  const double share = p.family == Family::plain ? 0.1 : 1;  // under stress rounding errors of large Q and K dwarf gradients that vanish
  if (s.dtype == DType::f32 && p.family != Family::plain) cpu = errors_of(run(p, DType::f32, Device::cpu(), {.add = s.add}), truth, share);
  {
    const Forced forced(s);
    e = errors_of(run(p, s.dtype, Device::cuda(), s), truth, share);
  }
  const bool full = s.precision == Precision::full;
  const double unit = s.precision == Precision::tf32 ? 5e-4 : 4e-3;
  if (std::getenv("SIMT_ATTENTION_VERBOSE"))
    std::printf("%s: out %.1e grads %.1e stats %.1e (cpu %.1e %.1e %.1e)\n", name_of(p, s).c_str(), e.out, e.grads, e.stats, cpu.out, cpu.grads,
                cpu.stats);
  CHECK(e.out <= std::max(4 * cpu.out, !full ? 8 * unit : s.dtype == DType::f64 ? 1e-11 : 2e-5));
  CHECK(e.grads <= std::max(4 * cpu.grads, !full ? 16 * unit : s.dtype == DType::f64 ? 1e-9 : 1e-4));
  CHECK(e.stats <= std::max(4 * cpu.stats, !full ? 32 * unit : s.dtype == DType::f64 ? 1e-11 : 1e-4));
}

const Setting kDouble, kSingle{.dtype = DType::f32}, kBf16{.dtype = DType::f32, .precision = Precision::bf16},
    kTf32{.dtype = DType::f32, .precision = Precision::tf32};

}  // namespace

TEST_CASE("sizes that fill no tile, at every number of half-steps") {
  const int64_t sizes[] = {1, 3, 16, 17, 31, 33, 64, 65};
  int k = 0;
  for (const int64_t n : sizes)
    for (const int64_t m : sizes) {
      const int64_t d[] = {8, 1, 5, 16, 33}, e[] = {4, 7, 1, 12, 20};
      const Problem p{
          .batch = 1 + k % 2, .heads = 1 + k / 2 % 2, .n = n, .m = m, .d = d[k % 5], .e = e[k / 2 % 5], .options = {.iterations = 1 + k % 7}};
      check(p, k % 3 == 0 ? kSingle : kDouble);
      ++k;
    }
}

TEST_CASE("larger matrices and wide heads") {
  check({.heads = 2, .n = 100, .m = 130, .d = 64, .e = 64, .options = {.iterations = 3}}, kSingle);
  check({.n = 200, .m = 200, .d = 16, .e = 16, .options = {.iterations = 3}}, kSingle);
  check({.n = 65, .m = 100, .d = 128, .e = 96, .options = {.iterations = 5}}, kSingle);
  check({.n = 33, .m = 40, .d = 128, .e = 128, .options = {.iterations = 3}}, kDouble);
  check({.n = 20, .m = 300, .d = 12, .e = 68, .options = {.iterations = 21}}, kDouble);
}

TEST_CASE("every variant in every precision") {
  for (const AttentionVariant variant : {AttentionVariant::block, AttentionVariant::cluster, AttentionVariant::streaming})
    for (Setting s : {kDouble, kSingle, kBf16, kTf32}) {
      s.variant = variant;
      for (const int l : {1, 4, 5}) check({.heads = 2, .n = 70, .m = 66, .d = 16, .e = 16, .options = {.iterations = l}, .keys = l == 5}, s);
      s.offset = 1;
      check({.n = 40, .m = 50, .d = 8, .e = 8, .options = {.iterations = 3}}, s);
    }
}

TEST_CASE("stripes shared by a cluster") {
  Setting s = kSingle;
  s.variant = AttentionVariant::streaming;
  for (const int64_t m : {600, 1100}) check({.n = 33, .m = m, .d = 8, .e = 8, .options = {.iterations = 3}}, s);
  s.precision = Precision::bf16;
  check({.n = 40, .m = 700, .d = 16, .e = 16, .options = {.iterations = 5}}, s);
}

TEST_CASE("scores that leave the range of the scalings") {
  for (const AttentionVariant variant : {AttentionVariant::block, AttentionVariant::cluster, AttentionVariant::streaming}) {
    Setting s = kSingle;
    s.variant = variant;
    for (const double shift : {60.0, 90.0, 200.0})
      check({.n = 40, .m = 36, .d = 8, .e = 8, .options = {.iterations = 5}, .family = Family::shifted_column, .size = shift}, s);
    s.precision = Precision::bf16;  // which holds a shift of 90 sqrt(d) exactly; panels of keys and of values differ in width
    check({.n = 40, .m = 36, .d = 16, .e = 16, .options = {.iterations = 5}, .family = Family::shifted_column, .size = 90}, s);
  }
}

TEST_CASE("a block of a cluster that alone builds its rows again") {
  Setting s = kSingle;
  s.variant = AttentionVariant::cluster;
  for (const double shift : {68.0, 69.0})
    check({.n = 40, .m = 36, .d = 8, .e = 8, .options = {.iterations = 3}, .family = Family::shifted_column, .size = shift}, s);
}

TEST_CASE("blocks that take several stripes, and matrices that stop early") {
  Setting s = kSingle;
  s.variant = AttentionVariant::streaming;
  check({.batch = 4, .heads = 4, .n = 260, .m = 12, .d = 4, .e = 4, .options = {.iterations = 3}}, s);
  for (const double tolerance : {0.3, 1e-3}) check({.heads = 2, .n = 40, .m = 24, .options = {.iterations = 7, .tolerance = tolerance}}, s);
}

TEST_CASE("masks") {
  for (const Setting& s : {kDouble, kSingle})
    for (int l : {1, 2, 3, 4, 5}) {
      check({.batch = 2, .heads = 2, .n = 19, .m = 37, .options = {.iterations = l}, .keys = true, .queries = l % 2 == 0}, s);
      check({.batch = 2, .n = 37, .m = 19, .options = {.iterations = l, .rows_sum_to_inverse_count = true}, .queries = true}, s);
    }
  check({.batch = 2, .n = 18, .m = 21, .options = {.iterations = 1, .rows_sum_to_inverse_count = true}, .pairs = true}, kDouble);
  check({.batch = 2, .n = 33, .m = 33, .options = {.iterations = 1, .expose_plan = true}, .keys = true, .pairs = true, .pairs_per_batch = true},
        kDouble);
  check({.n = 1, .m = 1, .options = {.iterations = 3}, .keys = false}, kDouble);
}

/// The variants that run forward and backward of (heads, n, 64) on an H200, as in docs/gpu.md; nothing is computed.
std::string variants_of(int64_t heads, int64_t n, int iterations, Precision precision) {
  const Forced unforced({.variant = AttentionVariant::automatic});
  const char* names[] = {"block", "cluster", "streaming"};
  auto first_that_fits = [&](auto run) {
    for (int k = 0; k < 3; ++k) {
      cuda::forced_attention_variant() = static_cast<AttentionVariant>(k + 1);
      try {
        run();
        return names[k];
      } catch (const Error&) {
      }
    }
    return "none";
  };
  cuda::context().suppress_launches(true);
  Tape tape(DType::f32, Device::cuda());
  tape.set_precision(precision);
  const Tensor x(Shape{heads, n, 64}, DType::f32, Device::cuda());
  const Var q = tape.variable(x), k = tape.variable(x), v = tape.variable(x);
  Var out;
  const std::string forward = first_that_fits([&] { out = sinkhorn_attention(q, k, v, 1, 0.125, {.iterations = iterations}); });
  const std::string backward = first_that_fits([&] { tape.backward(out, x.view(), Tape::BackwardOptions{}); });
  cuda::context().suppress_launches(false);
  return forward == backward ? forward : forward + ", " + backward;
}

TEST_CASE("which variant runs on an H200") {
  struct Row {
    int64_t heads, n;
    const char *full, *bf16;
  };
  for (const Row& row : {Row{512, 64, "block", "block"}, Row{256, 256, "cluster", "block"}, Row{64, 1024, "streaming", "cluster"},
                         Row{16, 4096, "streaming", "streaming"}, Row{8, 8192, "streaming", "streaming"}})
    for (const int l : {1, 3, 5, 21}) {
      INFO(row.heads << " x " << row.n << ", l " << l);
      CHECK(variants_of(row.heads, row.n, l, Precision::full) == row.full);
      CHECK(variants_of(row.heads, row.n, l, Precision::bf16) == row.bf16);
    }
}

TEST_CASE("the largest cluster, on a device with little shared memory") {
  const Problem p{.n = 250, .m = 130, .d = 8, .e = 8, .options = {.iterations = 5}};
  for (Setting s : {kSingle, kBf16}) {
    s.variant = AttentionVariant::cluster;
    // The smallest memory that does is that of the most blocks.
    for (s.shared_limit = 8 << 10;; s.shared_limit += 1 << 10) {
      const Forced forced(s);
      try {
        run(p, s.dtype, Device::cuda(), s);
        break;
      } catch (const Error&) {
        REQUIRE(s.shared_limit < 64 << 10);
      }
    }
    check(p, s);
  }
}

TEST_CASE("random problems", "[.sweep]") {
  RandomStream random(std::getenv("SWEEP_SEED") ? std::stoull(std::getenv("SWEEP_SEED")) : 1, "simt attention/sweep");
  auto pick = [&](std::initializer_list<int64_t> v) { return v.begin()[random.below(v.size())]; };
  const int count = std::getenv("SWEEP") ? std::atoi(std::getenv("SWEEP")) : 50;
  const int64_t largest = std::getenv("SWEEP_MAX") ? std::atoi(std::getenv("SWEEP_MAX")) : 1000;
  for (int k = 0; k < count; ++k) {
    Problem p{.batch = pick({1, 2}),
              .heads = pick({1, 3}),
              .n = pick({1, 3, 16, 17, 31, 33, 64, 65, 100, 130, 200}),
              .m = pick({1, 3, 16, 17, 31, 33, 64, 65, 100, 130, 200}),
              .d = pick({1, 2, 3, 4, 8, 12, 16, 31, 32, 64, 65, 100, 128}),
              .e = pick({1, 2, 3, 4, 8, 12, 16, 31, 32, 64, 65, 100, 128})};
    p.n = std::min(p.n, largest), p.m = std::min(p.m, largest);
    p.options.iterations = static_cast<int>(pick({1, 1, 2, 3, 3, 4, 5, 7, 21}));
    p.options.expose_plan = random.below(3) == 0;
    p.options.rows_sum_to_inverse_count = random.below(4) == 0;
    if (random.below(4) == 0) p.options.gradient = SinkhornGradient::frozen;
    if (random.below(4) == 0) p.options.tolerance = random.below(2) ? 0.3 : 1e-3;
    p.keys = random.below(3) == 0, p.queries = random.below(3) == 0;
    if (p.options.iterations == 1) p.pairs = random.below(2) == 0, p.pairs_per_batch = random.below(2) == 0;
    p.family = static_cast<Family>(random.below(4));
    p.size = p.family == Family::plain   ? 1
             : p.family == Family::sharp ? static_cast<double>(pick({5, 20, 80}))
                                         : static_cast<double>(pick({-60, -85, -90, -200, 90}));
    if (p.d == 1 && p.family != Family::plain) p.d = 2;
    if (random.below(6) == 0) p.same = true, p.m = p.n, p.e = p.d;
    if (!p.same)
      for (bool& w : p.wanted) w = random.below(4) != 0;
    Setting s;
    s.variant = random.below(2) ? AttentionVariant::block : AttentionVariant::cluster;
    s.dtype = random.below(2) ? DType::f64 : DType::f32;
    if (s.dtype == DType::f32 && p.family == Family::plain) s.precision = static_cast<Precision>(random.below(3));
    s.offset = pick({0, 0, 1, 4});
    s.add = random.below(2);
    s.shared_limit = static_cast<size_t>(pick({227, 163, 227, 100, 60, 30})) << 10;
    simt::settings().schedule = static_cast<simt::Schedule>(random.below(3));
    simt::settings().seed = random.below(1000);
    try {
      check(p, s);
    } catch (const std::exception& error) {
      std::printf("%s\n   %s\n", name_of(p, s).c_str(), error.what());
    }
  }
}
