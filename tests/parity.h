// Shared by the files of the program `parity`: a reference file, the comparison of our numbers with it, and the families of files.
// Tolerances are those of the fixtures' README.
#pragma once
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "nn/module.h"
#include "ops/sinkhorn_options.h"

namespace parity {

using namespace sinkgrad;

inline constexpr double kTolerance = 2e-5;  // of outputs, gradients and final parameters, relative to the largest entry

/// One reference file: tensors by key, and what its metadata says.
class Fixture {
 public:
  explicit Fixture(const std::filesystem::path& path);
  bool has(const std::string& key) const { return file_.tensors.contains(key); }
  /// Throws naming the key.
  const Tensor& at(const std::string& key) const;
  int64_t dim(const std::string& key, int axis) const { return at(key).shape()[axis]; }
  std::vector<std::string> keys(const std::string& prefix) const;
  /// An integer tensor as i32.
  Tensor integers(const std::string& key) const;
  bool says(const std::string& text) const { return metadata_.find(text) != std::string::npos; }
  /// The k-th number after a word of the metadata, as in "n_it 3" or "betas: (0.9, 0.98)".
  double number(const std::string& word, double otherwise, int k = 0) const;
  /// Number of half-steps, rows that sum to 1/n, frozen gradient.
  SinkhornOptions sinkhorn() const;

 private:
  SafetensorsFile file_;
  std::string metadata_;  // "key value" lines
};

/// Collects relative errors and judges them; knows which reference tensors were never looked at.
class Comparison {
 public:
  explicit Comparison(const Fixture& fixture);
  /// out/<name> relative to its largest entry.
  void output(const std::string& name, const View& ours) { check("out/" + name, to_doubles(ours), kTolerance); }
  /// grad/<name> likewise; one that is zero in exact arithmetic must stay below 1e-6 of the largest gradient of the file.
  void gradient(const std::string& name, const View& ours);
  /// Any reference tensor, relative to its largest entry.
  void check(const std::string& key, const std::vector<double>& ours, double tolerance);
  /// A sentence for the summary.
  void note(const std::string& text) { notes_.push_back(text); }
  /// Whether all tensors under out/, grad/ and final/ were compared and are close.
  bool finish();
  /// Every error, worst first.
  std::string summary() const;

 private:
  void add(const std::string& key, double error, double tolerance);
  const Fixture& fixture_;
  double largest_gradient_ = 0;
  std::set<std::string> seen_;
  std::vector<std::pair<double, std::string>> errors_;
  std::vector<std::string> notes_, failures_;
};

/// Copies param/<name> into a module's parameters and buffers. Each side must have what the other has, but for `ignored` names, torch's
/// batch counters, and trailing dimensions of 1 (convolutions of width 1).
void load_parameters(const Fixture& fixture, Module& module, const std::set<std::string>& ignored = {});

/// A kind of file, told by its keys, and how to run it.
struct Family {
  const char* name;
  bool (*matches)(const Fixture&);
  void (*run)(const Fixture&, Comparison&);
};
std::vector<Family> op_families();
std::vector<Family> model_families();
std::vector<Family> training_families();

}  // namespace parity
