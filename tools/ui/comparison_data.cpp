// What is compared is the state after the last half-step of each side.
#include "tools/ui/comparison_data.h"

#include <fmt/format.h>

#include <cmath>

#include "tools/ui/inspection_figures.h"

namespace sinkgrad {
namespace {

using Json = nlohmann::ordered_json;

std::string percent(double part) { return std::isfinite(part) ? fmt::format("{:.3g} %", 100 * part) : "infinitely much"; }

std::vector<std::pair<std::string, Tensor>> change_arrays(const Comparison& c) {
  const int64_t n = c.a.inspection.n, m = c.a.inspection.m;
  return {{"P", Tensor::of<double>({n, m}, c.change.plan)},
          {"row_sum", Tensor::of<double>({n}, c.change.row_sums)},
          {"col_sum", Tensor::of<double>({m}, c.change.column_sums)},
          {"row_entropy", Tensor::of<double>({n}, c.change.row_entropies)},
          {"dC", Tensor::of<double>({n, m}, c.change.gradient)}};
}

}  // namespace

std::vector<ComparedNumber> compared_numbers(const Comparison& c) {
  std::vector<ComparedNumber> numbers;
  const auto add = [&](const char* name, auto number) { numbers.push_back({name, number(c.a.inspection), number(c.b.inspection)}); };
  add("half-steps", [](const Inspection& i) { return static_cast<double>(i.half_steps); });
  add("rows off by", [](const Inspection& i) { return i.last().row_error; });
  add("columns off by", [](const Inspection& i) { return i.last().column_error; });
  add("mean entropy of a row", [](const Inspection& i) { return i.last().entropy; });
  add("largest entry of P", [](const Inspection& i) { return i.last().largest; });
  add("norm of dL/dC", [](const Inspection& i) { return norm(i.gradient); });
  add("its part of the last exponential", [](const Inspection& i) { return norm(i.direct); });
  add("\u03c3\u2082 of the limit plan", [](const Inspection& i) { return i.limit.sigma2; });
  return numbers;
}

std::vector<std::string> changes_in_words(const Comparison& c) {
  return {fmt::format("from A to B a row moves {} of its mass to other columns on average; column sums change by at most {}", percent(c.change.moved),
                      short_number(largest(c.change.column_sums))),
          fmt::format("the gradient dL/dC changes by {} of its norm, its direction has cosine {:.4f}", percent(c.change.gradient_change),
                      c.change.gradient_cosine)};
}

std::vector<std::pair<std::string, Tensor>> comparison_arrays(const Comparison& c) {
  std::vector<std::pair<std::string, Tensor>> arrays;
  const auto add = [&](const char* prefix, std::vector<std::pair<std::string, Tensor>> part) {
    for (auto& [name, array] : part) arrays.emplace_back(prefix + name, std::move(array));
  };
  add("change_", change_arrays(c));
  add("a_", inspection_arrays(c.a.inspection));
  add("b_", inspection_arrays(c.b.inspection));
  return arrays;
}

Json comparison_json(const Comparison& c) {
  Json json{{"schema", 1}, {"tool", "sinkgrad inspect --against"}, {"notes", c.notes}};
  for (const ComparedNumber& number : compared_numbers(c)) json["numbers"].push_back({{"name", number.name}, {"a", number.a}, {"b", number.b}});
  Json& change = json["change"];
  change = {{"moved", c.change.moved}, {"plan_cosine", c.change.plan_cosine}, {"gradient_cosine", c.change.gradient_cosine}};
  change["gradient_change"] = std::isfinite(c.change.gradient_change) ? Json(c.change.gradient_change) : Json("inf");
  for (const auto& [name, array] : change_arrays(c)) change[name] = array_json(array);
  json["a"] = inspection_json(c.a.inspection, c.a.source);
  json["b"] = inspection_json(c.b.inspection, c.b.source);
  return json;
}

std::string comparison_text(const Comparison& c) {
  std::string text = fmt::format("A  {}, {}\nB  {}, {}\n", c.a.source.title, half_steps_text(c.a.inspection.half_steps), c.b.source.title,
                                 half_steps_text(c.b.inspection.half_steps));
  text += fmt::format("{:<34}{:>12}{:>12}{:>12}\n", "", "A", "B", "B - A");
  for (const ComparedNumber& number : compared_numbers(c))
    text += fmt::format("{:<34}{:>12.4g}{:>12.4g}{:>12.3g}\n", number.name, number.a, number.b, number.b - number.a);
  for (const std::string& sentence : changes_in_words(c)) text += sentence + "\n";
  for (const std::string& note : c.notes) text += "note  " + note + "\n";
  return text;
}

}  // namespace sinkgrad
