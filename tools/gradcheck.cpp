// `sinkgrad gradcheck`: every op against central differences and the rest of its contract, from the command line.
// A report names op, sample and seed, so that --replay runs exactly that case again.
#include "core/gradcheck.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "core/file.h"
#include "core/json_error.h"
#include "core/parallel.h"
#include "core/version.h"
#include "tools/commands.h"
#include "tools/option_checks.h"
#include "tools/shared_options.h"

namespace sinkgrad {
namespace {

using nlohmann::json;

struct GradcheckCommand {
  std::vector<std::string> ops;
  std::optional<size_t> sample;
  uint64_t seed = 1;
  bool all = false, as_json = false, self_test = false, list = false;
  std::string replay, device = "cpu";
};

/// Not finite numbers as strings, which JSON would lose.
json number(double x) { return std::isfinite(x) ? json(x) : json(fmt::format("{}", x)); }

/// What --json writes; `device` is what was checked.
json to_json(const GradcheckReport& r, const std::string& device) {
  json shapes = json::array(), attrs = json::object(), findings = json::array();
  for (const Shape& s : r.shapes) {
    shapes.push_back(json::array());
    for (int i = 0; i < s.rank(); ++i) shapes.back().push_back(s[i]);
  }
  for (const Attr& a : r.attrs) attrs[a.name] = number(a.value);
  for (const GradcheckFinding& f : r.findings)
    findings.push_back({{"check", f.check}, {"ok", f.ok}, {"value", number(f.value)}, {"detail", f.detail}});
  const GradcheckEntry& w = r.worst;
  return {{"tool", "sinkgrad gradcheck"},
          {"version", SINKGRAD_VERSION},
          {"op", r.op},
          {"sample", r.sample},
          {"seed", r.seed},
          {"device", device},
          {"threads", threads()},
          {"attrs", attrs},
          {"shapes", shapes},
          {"verdict", r.passed() ? "PASS" : "FAIL"},
          {"tolerance", r.tolerance},
          {"bad_entries", r.bad_entries},
          {"total_entries", r.total_entries},
          {"resampled", r.resampled},
          {"worst",
           {{"input", w.input},
            {"index", w.index},
            {"analytic", number(w.analytic)},
            {"numeric", number(w.numeric)},
            {"error_bar", number(w.error_bar)},
            {"error", number(w.error)}}},
          {"findings", findings},
          {"notes", r.notes}};
}

/// The kernels of a GPU against those of the CPU; an error, such as a kernel that does not exist, is a failure of its sample.
GradcheckReport compare(const OpDef& op, size_t sample, Device device, const GradcheckOptions& options) {
  try {
    return crosscheck(op, sample, device, options);
  } catch (const Error& error) {
    GradcheckReport r{.op = op.name, .sample = sample, .seed = options.seed};
    r.findings.push_back({"runs", false, 0, error.what()});
    return r;
  }
}

/// One sample of an op or all, on the CPU against differences, elsewhere against the CPU.
std::vector<GradcheckReport> check(const OpDef& op, std::optional<size_t> sample, Device device, const GradcheckOptions& options) {
  if (device.kind() == DeviceKind::cpu) return sample ? std::vector{gradcheck(op, *sample, options)} : gradcheck(op, options);
  std::vector<GradcheckReport> reports;
  for (size_t s = 0; s < op.samples().size(); ++s)
    if (!sample || *sample == s) reports.push_back(compare(op, s, device, options));
  return reports;
}

/// Prints the reports of one op; with `table` one line, followed by the reports that failed.
bool print(const std::vector<GradcheckReport>& reports, const std::string& device, bool as_json, bool table) {
  bool passed = true;
  double worst = 0;
  for (const GradcheckReport& r : reports) {
    passed &= r.passed();
    worst = std::max(worst, r.worst.error);
    if (as_json) fmt::print("{}\n", to_json(r, device).dump());
  }
  if (as_json) return passed;
  if (table) fmt::print("{:<24} {}  {:>2} samples  worst error {:.1e}\n", reports.front().op, passed ? "PASS" : "FAIL", reports.size(), worst);
  for (const GradcheckReport& r : reports)
    if (!table || !r.passed()) fmt::print("{}", r.text());
  return passed;
}

/// Prints mutants killed/total of one op and the survivors; false when one survives.
bool self_test(const OpDef& op, const GradcheckOptions& options) {
  int killed = 0, total = 0;
  std::string survivors;
  for (const GradcheckMutant& m : gradcheck_mutants(op, options)) {
    killed += m.applicable && m.caught;
    total += m.applicable;
    if (m.applicable && !m.caught) survivors += "  SURVIVES  " + m.mutant + "\n";
  }
  fmt::print("{:<24} {:>2}/{:<2} mutants killed\n{}", op.name, killed, total, survivors);
  return survivors.empty();
}

Device open(const std::string& name) {
  std::string unused;
  return open_device(name, unused);
}

/// Runs the cases of a file of reports, one JSON object per line or a single one.
bool replay(const GradcheckCommand& command) {
  std::istringstream lines(read_file(command.replay, uint64_t{1} << 26));
  std::vector<json> cases;
  try {
    if (json whole = json::parse(lines.str(), nullptr, false); !whole.is_discarded())
      cases = {whole};
    else
      for (std::string line; std::getline(lines, line);)
        if (!line.empty()) cases.push_back(json::parse(line));
    require<InputError>(!cases.empty(), command.replay, ": holds no report of `sinkgrad gradcheck --json`");
    bool passed = true;
    for (const json& c : cases) {
      require<InputError>(c.at("sample").is_number_unsigned(), command.replay, ": a sample must be a non-negative integer, got ",
                          c.at("sample").dump());
      const OpDef& op = find_op(c.at("op").get<std::string>());
      const GradcheckOptions options{.seed = c.at("seed").get<uint64_t>(), .tolerance = c.value("tolerance", 0.0)};
      const std::string device = c.value("device", "cpu");
      const GradcheckReport r = check(op, c.at("sample").get<size_t>(), open(device), options).at(0);
      require<InputError>(to_json(r, device)["shapes"] == c.at("shapes"), command.replay, ": the report was made for other shapes than sample ",
                          r.sample, " of ", op.name, " has now, ", c.at("shapes").dump(), " and ", to_json(r, device)["shapes"].dump());
      passed &= print({r}, device, command.as_json, false);
    }
    return passed;
  } catch (const json::exception& e) {
    throw InputError(cat(command.replay, ": must be a report of `sinkgrad gradcheck --json`: ", json_problem(e)));
  }
}

/// False when a check failed.
bool run(const GradcheckCommand& command) {
  if (!command.replay.empty()) return replay(command);
  std::vector<const OpDef*> ops;
  for (const std::string& name : command.ops) ops.push_back(&find_op(name));
  if (ops.empty()) ops = registered_ops();
  const GradcheckOptions options{.seed = command.seed};
  const Device device = open(command.device);
  const bool on_cpu = device.kind() == DeviceKind::cpu;
  if (!command.as_json && !on_cpu && !command.list) fmt::print("{} against the CPU in float64\n", device.backend().name());
  bool passed = true;
  for (const OpDef* op : ops) {
    const size_t samples = op->samples().size() + (op->bad_shapes && on_cpu ? 1 : 0);
    if (command.list)
      fmt::print("{:<24} {:>2} samples{}\n", op->name, samples, op->reference ? ", reference" : "");
    else if (command.self_test)
      passed &= self_test(*op, options);
    else if (command.sample) {
      require<InputError>(*command.sample < samples, "gradcheck: ", op->name, " has samples 0 to ", samples - 1, ", got ", *command.sample);
      passed &= print(check(*op, command.sample, device, options), command.device, command.as_json, false);
    } else {
      passed &= print(check(*op, {}, device, options), command.device, command.as_json, command.ops.empty());
    }
    std::fflush(stdout);
  }
  return passed;
}

}  // namespace

void add_gradcheck(CLI::App& app) {
  const auto options = std::make_shared<GradcheckCommand>();
  CLI::App* command = app.add_subcommand("gradcheck", "Check the gradient of every op against central differences");
  command->footer("Example: sinkgrad gradcheck --op softmax --sample 2 --json > report.json && sinkgrad gradcheck --replay report.json");
  CLI::Option* op = command->add_option("--op", options->ops, "the ops to check, with a full report [all, one line each]");
  command->add_flag("--all", options->all, "every op, one line each (what happens without --op)")->excludes(op);
  command->add_option("--sample", options->sample, "one sample of the op [all]")->check(natural_number)->needs(op);
  command->add_option("--seed", options->seed, "of inputs and cotangents")->check(natural_number)->capture_default_str();
  command->add_flag("--json", options->as_json, "one JSON object per check, one per line");
  CLI::Option* mutants = command->add_flag("--self-test", options->self_test, "put known errors into each backward: the check must catch every one");
  command->add_flag("--list", options->list, "list the ops and how many samples they have")->excludes(mutants);
  add_device_option(*command, options->device, "cuda: compare its kernels with those of the CPU instead")->excludes(mutants);
  command->add_option("--replay", options->replay, "run the cases of a file written with --json")->excludes(op)->excludes(mutants);
  command->callback([options] {
    if (!run(*options)) throw CLI::RuntimeError(1);
  });
}

}  // namespace sinkgrad
