// Which rows and columns take part, and the fused op on them.
#include "nn/inspect/problem.h"

#include <cmath>
#include <limits>

namespace sinkgrad {
namespace {

constexpr double kExcluded = -std::numeric_limits<double>::infinity();
constexpr double kMostScore = 1e300;               // differences of scores must be finite
constexpr int64_t kMostValues = int64_t{1} << 22;  // half-steps x rows x columns: about 150 MB of JSON

void check(const Tensor& scores, const InspectionOptions& options) {
  require<ShapeError>(scores && scores.shape().rank() == 2 && scores.count() > 0 && scores.dtype() == DType::f64,
                      "inspect: scores must be a matrix (n, m) of f64 with at least one entry, got ", scores ? scores.shape() : Shape{0}, " ",
                      scores ? name_of(scores.dtype()) : "");
  require<ShapeError>(!options.cotangent || (options.cotangent.shape() == scores.shape() && options.cotangent.dtype() == DType::f64),
                      "inspect: the cotangent must be f64 like the scores ", scores.shape(), ", got ",
                      options.cotangent ? options.cotangent.shape() : Shape{}, " ", options.cotangent ? name_of(options.cotangent.dtype()) : "");
  require<InputError>(options.half_steps >= 1 && options.half_steps <= kMostValues / scores.count(), "inspect: needs 1 to ",
                      kMostValues / scores.count(), " half-steps for scores ", scores.shape(), ", got ", options.half_steps);
  const int64_t m = scores.shape()[1];
  int64_t at = 0;
  for (double score : scores.span<double>()) {
    require<InputError>(std::abs(score) <= kMostScore || score == kExcluded, "inspect: scores must lie within +-", kMostScore,
                        ", or be -inf to exclude an entry, got ", score, " at row ", at / m, ", column ", at % m);
    ++at;
  }
  if (options.cotangent)
    for (double value : options.cotangent.span<double>())
      require<InputError>(std::isfinite(value), "inspect: the cotangent must be finite, got ", value);
}

/// The lines 0 .. count-1 that are not masked.
std::vector<int64_t> kept(int64_t count, const std::vector<int64_t>& masked, const char* what) {
  std::vector<bool> keep(static_cast<size_t>(count), true);
  for (int64_t i : masked) {
    require<InputError>(i >= 0 && i < count, "inspect: a masked ", what, " must lie in 0..", count - 1, ", got ", i);
    keep[static_cast<size_t>(i)] = false;
  }
  std::vector<int64_t> lines;
  for (int64_t i = 0; i < count; ++i)
    if (keep[static_cast<size_t>(i)]) lines.push_back(i);
  return lines;
}

Tensor random_cotangent(const Shape& shape, uint64_t seed) {
  Tensor w(shape, DType::f64);
  RandomStream random(seed, "cotangent");
  for (double& value : w.span<double>()) value = random.normal();
  return w;
}

/// 1 for the lines 0 .. count-1 that are not in `lines`.
Tensor mask_of(int64_t count, const std::vector<int64_t>& lines) {
  std::vector<int32_t> mask(static_cast<size_t>(count), 1);
  for (int64_t i : lines) mask[static_cast<size_t>(i)] = 0;
  return Tensor::of<int32_t>({1, count}, mask);
}

}  // namespace

Problem::Problem(const Tensor& given, const InspectionOptions& options) : full_scores(given) {
  check(given, options);
  full_n = given.shape()[0], full_m = given.shape()[1];
  full_cotangent = options.cotangent ? options.cotangent : random_cotangent(given.shape(), options.seed);
  const auto score = [&](int64_t i, int64_t j) { return given.span<double>()[static_cast<size_t>(i * full_m + j)]; };
  rows = kept(full_n, options.masked_queries, "query");
  columns = kept(full_m, options.masked_keys, "key");
  // A line without a finite score is excluded as if it were masked.
  std::erase_if(rows, [&](int64_t i) { return std::none_of(columns.begin(), columns.end(), [&](int64_t j) { return score(i, j) > kExcluded; }); });
  std::erase_if(columns, [&](int64_t j) { return std::none_of(rows.begin(), rows.end(), [&](int64_t i) { return score(i, j) > kExcluded; }); });
  require<InputError>(n() > 0 && m() > 0, "inspect: at least one row and one column must take part, all of the ", full_n, " x ", full_m,
                      " scores are excluded");
  scores = Tensor({n(), m()}, DType::f64);
  cotangent = Tensor({n(), m()}, DType::f64);
  size_t k = 0;
  for (int64_t i : rows) {
    double top = kExcluded;
    for (int64_t j : columns) top = std::max(top, score(i, j));
    row_maxima.push_back(top);
    for (int64_t j : columns) {
      scores.span<double>()[k] = score(i, j) - top;
      cotangent.span<double>()[k++] = full_cotangent.span<double>()[static_cast<size_t>(i * full_m + j)];
    }
  }
}

Numbers Problem::spread(const Numbers& matrix) const {
  Numbers full(static_cast<size_t>(full_n * full_m));
  size_t k = 0;
  for (int64_t i : rows)
    for (int64_t j : columns) full[static_cast<size_t>(i * full_m + j)] = matrix[k++];
  return full;
}

Numbers Problem::spread_rows(const Numbers& values) const {
  Numbers full(static_cast<size_t>(full_n));
  for (size_t k = 0; k < rows.size(); ++k) full[static_cast<size_t>(rows[k])] = values[k];
  return full;
}

Numbers Problem::spread_columns(const Numbers& values) const {
  Numbers full(static_cast<size_t>(full_m));
  for (size_t k = 0; k < columns.size(); ++k) full[static_cast<size_t>(columns[k])] = values[k];
  return full;
}

Numbers plan_of(const Tensor& x, const Numbers& f, const Numbers& g) {
  Numbers plan(static_cast<size_t>(x.count()));
  const std::span<const double> scores = x.span<double>();
  for (size_t k = 0; k < plan.size(); ++k) plan[k] = std::exp(scores[k] + f[k / g.size()] + g[k % g.size()]);
  return plan;
}

double row_error(const Numbers& plan, int64_t n, int64_t m) {
  double worst = 0;
  for (int64_t i = 0; i < n; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < m; ++j) sum += plan[static_cast<size_t>(i * m + j)];
    worst = std::max(worst, std::abs(sum - 1));
  }
  return worst;
}

double column_error(const Numbers& plan, int64_t n, int64_t m) {
  double worst = 0;
  for (int64_t j = 0; j < m; ++j) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += plan[static_cast<size_t>(i * m + j)];
    worst = std::max(worst, std::abs(sum * static_cast<double>(m) / static_cast<double>(n) - 1));
  }
  return worst;
}

FusedRun run_fused(const Problem& problem, const SinkhornOptions& options) {
  Tape tape(DType::f64);
  const Var scores = tape.variable(problem.full_scores);
  const bool all_rows = problem.n() == problem.full_n, all_columns = problem.m() == problem.full_m;
  const Tensor keys = mask_of(problem.full_m, problem.columns), queries = mask_of(problem.full_n, problem.rows);
  const Var plan =
      sinkhorn(scores, options, {.key_is_padding = all_columns ? Var{} : tape.leaf(keys), .query_is_padding = all_rows ? Var{} : tape.leaf(queries)});
  tape.backward(plan, problem.full_cotangent);
  size_t kept = 0;
  for (const View& saved : tape.saved(tape.records().back())) kept += saved.bytes();
  return {to_doubles(tape.value(plan)), to_doubles(tape.grad(scores)), sinkhorn_report(plan), kept};
}

double cosine(const Numbers& a, const Numbers& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += a[i] * b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
  }
  if (aa == 0 || bb == 0) return aa == bb ? 1 : 0;
  return ab / std::sqrt(aa * bb);
}

}  // namespace sinkgrad
