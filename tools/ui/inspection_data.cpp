// The names are part of the interface: "schema" changes when one of them does.
#include "tools/ui/inspection_data.h"

#include <fmt/format.h>

#include "core/json.h"

namespace sinkgrad {
namespace {

using Json = nlohmann::ordered_json;

Json numbers(const Numbers& values) {
  Json list = Json::array();
  for (double x : values) list.push_back(json_number(x));
  return list;
}

/// The elements from `at` on as lists of lists.
Json nested(const Shape& shape, int axis, std::span<const double>& at) {
  if (axis == shape.rank()) {
    const double x = at[0];
    at = at.subspan(1);
    return json_number(x);
  }
  Json list = Json::array();
  for (int64_t i = 0; i < shape[axis]; ++i) list.push_back(nested(shape, axis + 1, at));
  return list;
}

/// What `part` gives for every half-step, one after another.
template <class Part>
Numbers by_step(const Inspection& i, Part part) {
  Numbers all;
  for (const InspectedStep& s : i.steps) {
    const Numbers values = part(s);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

}  // namespace

Json array_json(const Tensor& array) {
  std::span<const double> values = array.span<double>();
  return nested(array.shape(), 0, values);
}

std::string half_step_name(size_t k) { return fmt::format("{} ({})", k + 1, k % 2 == 0 ? "rows" : "columns"); }

std::vector<std::pair<std::string, Tensor>> inspection_arrays(const Inspection& i) {
  const int64_t l = i.half_steps, n = i.n, m = i.m;
  std::vector<std::pair<std::string, Tensor>> arrays;
  const auto add = [&](const char* name, const Shape& shape, const Numbers& values) { arrays.emplace_back(name, Tensor::of<double>(shape, values)); };
  using Step = const InspectedStep&;
  add("C", {n, m}, i.scores);
  add("f", {l, n}, by_step(i, [](Step s) { return s.f; }));
  add("g", {l, m}, by_step(i, [](Step s) { return s.g; }));
  add("P", {l, n, m}, by_step(i, [](Step s) { return s.plan; }));
  add("row_sum", {l, n}, by_step(i, [](Step s) { return s.row_sums; }));
  add("col_sum", {l, m}, by_step(i, [](Step s) { return s.column_sums; }));
  add("err_row", {l}, by_step(i, [](Step s) { return Numbers{s.row_error}; }));
  add("err_col", {l}, by_step(i, [](Step s) { return Numbers{s.column_error}; }));
  add("dual", {l}, by_step(i, [](Step s) { return Numbers{s.dual}; }));
  add("entropy", {l}, by_step(i, [](Step s) { return Numbers{s.entropy}; }));
  add("largest", {l}, by_step(i, [](Step s) { return Numbers{s.largest}; }));
  add("W", {n, m}, i.cotangent);
  add("gbar_f", {l, n}, by_step(i, [](Step s) { return s.f_cotangent; }));
  add("gbar_g", {l, m}, by_step(i, [](Step s) { return s.g_cotangent; }));
  add("dC_direct", {n, m}, i.direct);
  add("dC_step", {l, n, m}, by_step(i, [](Step s) { return s.contribution; }));
  add("dC", {n, m}, i.gradient);
  for (const InspectedMode& mode : i.modes)
    if (mode.name != "unrolled" && !mode.gradient.empty())
      add(mode.name == "finite_differences" ? "dC_fd" : ("dC_" + mode.name).c_str(), {n, m}, mode.gradient);
  add("P_limit", {n, m}, i.limit.plan);
  add("dC_limit", {n, m}, i.limit.gradient);
  add("sigma2", {}, {i.limit.sigma2});
  if (!i.jacobians.empty()) {
    Numbers all;
    for (const InspectedJacobian& j : i.jacobians) all.insert(all.end(), j.singular_values.begin(), j.singular_values.end());
    add("sv", {static_cast<int64_t>(i.jacobians.size()), static_cast<int64_t>(i.jacobians[0].singular_values.size())}, all);
  }
  return arrays;
}

Json inspection_json(const Inspection& i, const InspectionSource& source) {
  Json json{{"schema", 1}, {"tool", "sinkgrad inspect"}, {"source", source.attributes}};
  json["source"]["title"] = source.title;
  json["half_steps"] = i.half_steps;
  json["rows"] = i.rows;
  json["columns"] = i.columns;
  json["warnings"] = i.warnings;
  json["checks"] = {{"fused_plan_difference", json_number(i.fused_plan_difference)},
                    {"contributions_difference", json_number(i.contributions_difference)}};
  json["limit"] = {{"half_steps", i.limit.half_steps},
                   {"converged", i.limit.converged},
                   {"err_col", json_number(i.limit.column_error)},
                   {"dual", json_number(i.limit.dual)},
                   {"rate", json_number(i.limit.sigma2 * i.limit.sigma2)}};
  json["modes"] = Json::array();
  for (const InspectedMode& mode : i.modes) {
    json["modes"].push_back({{"name", mode.name}, {"bytes_kept", mode.bytes_kept}, {"note", mode.note}});
    if (mode.gradient.empty()) continue;
    json["modes"].back()["difference"] = json_number(mode.difference);
    json["modes"].back()["cosine"] = json_number(mode.cosine);
  }
  json["step_by_step_bytes"] = i.step_by_step_bytes;
  json["jacobians"] = Json::array();
  for (const InspectedJacobian& j : i.jacobians)
    json["jacobians"].push_back({{"name", j.name}, {"rank", j.rank}, {"theory_rank", j.theory_rank}, {"asymmetry", json_number(j.asymmetry)}});
  const InspectedConvergence& c = i.convergence;
  json["convergence"] = {{"err_row", numbers(c.row_error)},
                         {"err_col", numbers(c.column_error)},
                         {"dual", numbers(c.dual)},
                         {"odd", c.odd},
                         {"implicit_difference", numbers(c.implicit_difference)},
                         {"implicit_cosine", numbers(c.implicit_cosine)},
                         {"frozen_difference", numbers(c.frozen_difference)},
                         {"frozen_cosine", numbers(c.frozen_cosine)}};
  for (const auto& [name, array] : inspection_arrays(i)) json[name] = array_json(array);
  return json;
}

std::string inspection_text(const Inspection& i, const InspectionSource& source) {
  std::string text = fmt::format("{}, {} half-step{}\n", source.title, i.half_steps, i.half_steps == 1 ? "" : "s");
  text += fmt::format("{:<14}{:>10}{:>13}{:>11}{:>10}{:>10}{:>18}\n", "half-step", "rows off", "columns off", "dual", "entropy", "largest",
                      "part of dL/dC");
  for (size_t k = 0; k < i.steps.size(); ++k) {
    if (constexpr size_t kShown = 12; i.steps.size() > kShown + 2 && k == kShown / 2) {
      k = i.steps.size() - kShown / 2;
      text += fmt::format("... {} more are in the files\n", i.steps.size() - kShown);
    }
    const InspectedStep& s = i.steps[k];
    text += fmt::format("{:<14}{:>10.1e}{:>13.1e}{:>11.5g}{:>10.3f}{:>10.4f}{:>18.1e}\n", half_step_name(k), s.row_error, s.column_error, s.dual,
                        s.entropy, s.largest, largest(s.contribution));
  }
  text += fmt::format("sum of all parts equals dL/dC (largest entry {:.3g}) within {:.1e}\n", largest(i.gradient), i.contributions_difference);
  text += fmt::format("limit: {} half-step{}", i.limit.half_steps, i.limit.half_steps == 1 ? "" : "s");
  if (const double rate = i.limit.sigma2 * i.limit.sigma2; rate > 0)
    text += fmt::format(", sigma_2(P)^2 = {:.4g}: two more half-steps divide the error by {:.3g}", rate, 1 / rate);
  text += "\n";
  for (const InspectedMode& mode : i.modes)
    text += mode.gradient.empty()
                ? fmt::format("{:<20}{}\n", mode.name, mode.note)
                : fmt::format("{:<20}differs by {:.1e}, cosine {:.6f}, keeps {} bytes\n", mode.name, mode.difference, mode.cosine, mode.bytes_kept);
  for (const InspectedJacobian& j : i.jacobians)
    text += fmt::format("Jacobian {:<15}rank {} (theory {}), asymmetry {:.1e}\n", j.name, j.rank, j.theory_rank, j.asymmetry);
  for (const std::string& warning : i.warnings) text += "note  " + warning + "\n";
  return text;
}

}  // namespace sinkgrad
