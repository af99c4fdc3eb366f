// Keys stay stable: other programs read them. Numbers that JSON lacks (NaN, infinities) are strings.
#include "tools/gradcheck_json.h"

#include <fmt/format.h>

#include "core/json.h"
#include "core/parallel.h"
#include "core/version.h"

namespace sinkgrad {
namespace {

using Object = nlohmann::ordered_json;

Object list(const Shape& s) {
  Object dims = Object::array();
  for (int i = 0; i < s.rank(); ++i) dims.push_back(s[i]);
  return dims;
}

/// Tensors are dense and row-major.
Object strides(const Shape& s) {
  Object steps = Object::array();
  for (int i = 0; i < s.rank(); ++i) steps.push_back(s.count(i + 1, s.rank()));
  return steps;
}

Object entry(const GradcheckEntry& e) {
  return {{"index_out", e.out_index},
          {"index_in", e.index},
          {"cotangent", e.cotangent},
          {"direction", e.direction},
          {"analytic", json_number(e.analytic)},
          {"numeric", json_number(e.numeric)},
          {"error_bar", json_number(e.error_bar)},
          {"abs", json_number(e.error)},
          {"rel", json_number(e.relative)}};
}

Object pair(const GradcheckReport& r, const GradcheckInput& in) {
  Object p = {{"output", 0},       {"input", in.number},
              {"bad", in.bad},     {"unverifiable", in.unverifiable},
              {"total", in.total}, {"atol", json_number(r.tolerance * in.scale)}};
  if (in.top.empty()) return p;
  p["worst"] = entry(in.top[0]);
  p["top"] = Object::array();
  for (const GradcheckEntry& e : in.top) p["top"].push_back(entry(e));
  return p;
}

}  // namespace

Object to_json(const GradcheckReport& r, const std::string& device) {
  Object attrs = Object::object(), inputs = Object::array(), pairs = Object::array(), checks = Object::object();
  for (const Attr& a : r.attrs) attrs[a.name] = json_number(a.value);
  for (const GradcheckInput& in : r.inputs) {
    inputs.push_back({{"name", fmt::format("x{}", in.number)},
                      {"dtype", name_of(in.dtype)},
                      {"shape", list(in.shape)},
                      {"strides", strides(in.shape)},
                      {"offset", 0},
                      {"requires_grad", in.requires_grad}});
    if (in.requires_grad && in.total > 0) pairs.push_back(pair(r, in));
  }
  for (const GradcheckFinding& f : r.findings) {
    checks[f.check] = {{"ok", f.ok}, {"value", json_number(f.value)}};
    if (!f.ok) checks[f.check]["detail"] = f.detail;
  }
  Object report = {{"tool", "sinkgrad gradcheck"},
                   {"version", SINKGRAD_VERSION},
                   {"op", r.op},
                   {"sample", r.sample},
                   {"attrs", attrs},
                   {"seed", r.seed},
                   {"device", device},
                   {"device_name", r.device},
                   {"threads", threads()},
                   {"inputs", inputs},
                   {"method", r.method},
                   {"budget", r.budget},
                   {"step", r.step},
                   {"tol", {{"atol", 0}, {"rtol", r.tolerance}}},
                   {"verdict", name_of(r.verdict())},
                   {"resampled", r.resampled},
                   {"pairs", pairs},
                   {"checks", checks},
                   {"notes", r.notes},
                   {"seconds", r.seconds}};
  if (!r.error.empty()) report["error"] = r.error;
  if (!r.skipped.empty()) report["skipped"] = r.skipped;
  return report;
}

nlohmann::json shapes_of(const GradcheckReport& r) {
  nlohmann::json shapes = nlohmann::json::array();
  for (const GradcheckInput& in : r.inputs) shapes.push_back(nlohmann::json(list(in.shape)));
  return shapes;
}

GradcheckReplay replay_of(const nlohmann::json& report) {
  GradcheckReplay replay{.op = report.at("op"),
                         .device = report.at("device"),
                         .options = {.seed = report.at("seed"), .tolerance = report.at("tol").at("rtol"), .budget = report.at("budget")},
                         .shapes = nlohmann::json::array()};
  const nlohmann::json& sample = report.at("sample");
  require<InputError>(sample.is_number_unsigned(), "a sample must be a non-negative integer, got ", sample.dump());
  replay.sample = sample;
  for (const nlohmann::json& input : report.at("inputs")) replay.shapes.push_back(input.at("shape"));
  return replay;
}

}  // namespace sinkgrad
