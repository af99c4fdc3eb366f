// A reference file, the comparison of our numbers with it, and its parameters in a module.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <regex>

#include "parity.h"

namespace parity {
namespace {

double largest(const std::vector<double>& x) {
  double m = 0;
  for (double v : x) m = std::max(m, std::abs(v));
  return m;
}

Shape without_trailing_ones(const Shape& shape) {
  Shape s;
  int rank = shape.rank();
  while (rank > 1 && shape[rank - 1] == 1) --rank;
  for (int i = 0; i < rank; ++i) s.push_back(shape[i]);
  return s;
}

void copy(const Tensor& from, const View& to, const std::string& name) {
  require<ShapeError>(from.shape() == to.shape || without_trailing_ones(from.shape()) == to.shape, "parameter '", name, "' must be ", to.shape,
                      ", got ", from.shape());
  const std::vector<double> values = to_doubles(from.view());
  dispatch(to.dtype, [&]<class T>() { std::transform(values.begin(), values.end(), to.as<T>(), [](double v) { return static_cast<T>(v); }); });
}

}  // namespace

Fixture::Fixture(const std::filesystem::path& path) : file_(read_safetensors(path)) {
  for (const auto& [key, value] : file_.metadata) metadata_ += key + " " + value + "\n";
}

const Tensor& Fixture::at(const std::string& key) const {
  const auto it = file_.tensors.find(key);
  require<InputError>(it != file_.tensors.end(), "the file has no tensor '", key, "'");
  return it->second;
}

std::vector<std::string> Fixture::keys(const std::string& prefix) const {
  std::vector<std::string> all;
  for (const auto& [key, tensor] : file_.tensors)
    if (key.starts_with(prefix)) all.push_back(key);
  return all;
}

Tensor Fixture::integers(const std::string& key) const {
  const std::vector<double> values = to_doubles(at(key).view());
  return Tensor::of<int32_t>(at(key).shape(), std::vector<int32_t>(values.begin(), values.end()));
}

double Fixture::number(const std::string& word, double otherwise, int k) const {
  std::string pattern = "\\b" + word;
  for (int i = 0; i <= k; ++i) pattern += "[:,( ]+([-+.0-9e]+)";
  std::smatch match;
  return std::regex_search(metadata_, match, std::regex(pattern)) ? std::strtod(match.str(static_cast<size_t>(k + 1)).c_str(), nullptr) : otherwise;
}

SinkhornOptions Fixture::sinkhorn() const {
  return {.iterations = static_cast<int>(number("n_it", 1)),
          .gradient = says("detached") ? SinkhornGradient::frozen : SinkhornGradient::unrolled,
          .rows_sum_to_inverse_count = says("1/n")};
}

Comparison::Comparison(const Fixture& fixture) : fixture_(fixture) {
  std::vector<std::string> keys = fixture.keys("grad/");
  if (fixture.has("cotangent")) keys.push_back("cotangent");
  for (const std::string& key : keys) largest_gradient_ = std::max(largest_gradient_, largest(to_doubles(fixture.at(key).view())));
}

void Comparison::add(const std::string& key, double error, double tolerance) {
  seen_.insert(key);
  errors_.emplace_back(error, key);
  if (!(error <= tolerance)) failures_.push_back(cat(key, " is off by ", error, ", allowed ", tolerance));
}

void Comparison::check(const std::string& key, const std::vector<double>& ours, double tolerance) {
  const std::vector<double> theirs = to_doubles(fixture_.at(key).view());
  require<ShapeError>(ours.size() == theirs.size(), key, ": must have ", theirs.size(), " elements, got ", ours.size());
  double error = 0;
  for (size_t i = 0; i < ours.size(); ++i) error = std::isnan(ours[i]) ? INFINITY : std::max(error, std::abs(ours[i] - theirs[i]));
  const double scale = largest(theirs);
  add(key, scale > 0 ? error / scale : error, tolerance);
}

void Comparison::gradient(const std::string& name, const View& ours) {
  const std::string key = "grad/" + name;
  if (!fixture_.has(key)) return;
  const std::vector<double> values = ours ? to_doubles(ours) : std::vector<double>(static_cast<size_t>(fixture_.at(key).count()));
  if (largest(to_doubles(fixture_.at(key).view())) < 1e-7 * largest_gradient_)
    add(key, largest(values) / largest_gradient_, 1e-6);
  else
    check(key, values, kTolerance);
}

bool Comparison::finish() {
  for (const char* prefix : {"out/", "grad/", "final/"})
    for (const std::string& key : fixture_.keys(prefix))
      if (!seen_.contains(key)) failures_.push_back(key + " was never compared");
  return failures_.empty();
}

std::string Comparison::summary() const {
  std::vector<std::pair<double, std::string>> sorted = errors_;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  std::ostringstream out;
  out.precision(2);
  for (const auto& [error, key] : sorted) out << ' ' << key << ' ' << error;
  for (const std::string& note : notes_) out << "\n     " << note;
  for (const std::string& failure : failures_) out << "\n     FAIL " << failure;
  return out.str();
}

void load_parameters(const Fixture& fixture, Module& module, const std::set<std::string>& ignored) {
  std::set<std::string> wanted;
  for (const std::string& key : fixture.keys("param/")) {
    const std::string name = key.substr(6);
    if (!name.ends_with("num_batches_tracked") && !ignored.contains(name)) wanted.insert(name);
  }
  const auto load = [&](const std::string& name, const View& to) {
    copy(fixture.at("param/" + name), to, name);
    wanted.erase(name);
  };
  for (const Parameter& p : module.parameters()) load(p.name, p.value);
  for (const Buffer& b : module.buffers()) load(b.name, b.value);
  require<InputError>(wanted.empty(), "our module has no parameter '", wanted.empty() ? "" : *wanted.begin(), "'");
}

}  // namespace parity
