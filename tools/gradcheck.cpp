// `sinkgrad gradcheck`: every op against central differences and the rest of its contract, from the command line.
// A report names op, sample and seed, so that --replay runs exactly that case again.
#include "core/gradcheck.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>

#include "core/file.h"
#include "core/json.h"
#include "tools/commands.h"
#include "tools/gradcheck_json.h"
#include "tools/option_checks.h"
#include "tools/shared_options.h"
#include "tools/ui/step_curve.h"

namespace sinkgrad {
namespace {

using nlohmann::json;

struct GradcheckCommand {
  std::vector<std::string> ops, libraries;
  std::optional<size_t> sample;
  GradcheckOptions options;
  bool all = false, as_json = false, self_test = false, list = false, strict = false;
  std::string replay, curve, device = "cpu";
};

/// A library whose globals register ops; they stay until the program ends.
void load(const std::string& library) {
  require<IoError>(std::filesystem::exists(library), library, ": does not exist");
  const std::string path = std::filesystem::absolute(library).string();  // a bare name would be looked up elsewhere
  if (!dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) throw InputError(cat(library, ": must be a shared library of ops, ", dlerror()));
  registered_ops();  // throws where an op breaks the contract
}

/// The kernels of a GPU against those of the CPU; what they throw is a result.
GradcheckReport compare(const OpDef& op, size_t sample, Device device, const GradcheckOptions& options) {
  try {
    return crosscheck(op, sample, device, options);
  } catch (const Error& error) {
    return {.op = op.name, .sample = sample, .seed = options.seed, .device = device.backend().name(), .error = error.what()};
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

/// Prints the reports of one op, in a table one line followed by the reports that did not pass; false when one counts as a failure.
bool print(const GradcheckCommand& command, const std::vector<GradcheckReport>& reports, const std::string& device, bool table) {
  GradcheckVerdict verdict = GradcheckVerdict::pass;
  double worst = 0;
  for (const GradcheckReport& r : reports) {
    verdict = std::max(verdict, r.verdict());
    worst = std::max(worst, r.worst.relative);
    if (command.as_json) fmt::print("{}\n", to_json(r, device).dump(-1, ' ', false, json::error_handler_t::replace));
  }
  if (!command.as_json && table)
    fmt::print("{:<24} {:<16} {:>2} samples  worst error {:.1e}\n", reports.front().op, name_of(verdict), reports.size(), worst);
  for (const GradcheckReport& r : reports)
    if (!command.as_json && (!table || !r.passed())) fmt::print("{}", r.text());
  return !is_failure(verdict, command.strict);
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

size_t sample_count(const OpDef& op, Device device) { return op.samples().size() + (op.bad_shapes && device.kind() == DeviceKind::cpu ? 1 : 0); }

void require_sample(const OpDef& op, size_t sample, Device device) {
  const size_t samples = sample_count(op, device);
  require<InputError>(sample < samples, "gradcheck: ", op.name, " has samples 0 to ", samples - 1, ", got ", sample);
}

/// Runs the cases of a file of reports, one JSON object per line or a single one.
bool replay(const GradcheckCommand& command) {
  std::istringstream lines(read_file(command.replay, uint64_t{1} << 26));
  std::vector<GradcheckReplay> cases;
  try {
    if (const json whole = json::parse(lines.str(), nullptr, false); !whole.is_discarded())
      cases = {replay_of(whole)};
    else
      for (std::string line; std::getline(lines, line);)
        if (!line.empty()) cases.push_back(replay_of(json::parse(line)));
  } catch (const json::exception& e) {
    throw InputError(cat(command.replay, ": must be a report of `sinkgrad gradcheck --json`: ", json_problem(e)));
  } catch (const InputError& e) {
    throw InputError(cat(command.replay, ": ", e.what()));
  }
  require<InputError>(!cases.empty(), command.replay, ": holds no report of `sinkgrad gradcheck --json`");
  bool passed = true;
  for (const GradcheckReplay& c : cases) {
    const OpDef& op = find_op(c.op);
    const Device device = open(c.device);
    require_sample(op, c.sample, device);
    const GradcheckReport r = check(op, c.sample, device, c.options).at(0);
    require<InputError>(shapes_of(r) == c.shapes, command.replay, ": the report was made for other shapes than sample ", r.sample, " of ", op.name,
                        " has now, ", c.shapes.dump(), " and ", shapes_of(r).dump());
    passed &= print(command, {r}, c.device, false);
  }
  return passed;
}

/// The report of a sample, and its step-size curve as a file.
bool curve(const GradcheckCommand& command) {
  require<InputError>(command.curve.ends_with(".svg"), "gradcheck: --curve requires a name that ends in .svg, got '", command.curve, "'");
  require<InputError>(command.ops.size() == 1 && open(command.device).kind() == DeviceKind::cpu,
                      "gradcheck: --curve requires one op, on the CPU, got ", command.ops.size(), " on ", command.device);
  const OpDef& op = find_op(command.ops[0]);
  require<InputError>(*command.sample < op.samples().size(), "gradcheck: ", op.name, " has samples 0 to ", op.samples().size() - 1,
                      " with derivatives, got ", *command.sample);
  const GradcheckCurve c = gradcheck_curve(op, *command.sample, command.options);
  write_file(command.curve, line_chart(step_curve(c)));
  return print(command, {c.report}, command.device, false);
}

/// False when a check failed.
bool run(const GradcheckCommand& command) {
  for (const std::string& library : command.libraries) load(library);
  if (!command.replay.empty()) return replay(command);
  if (!command.curve.empty()) return curve(command);
  std::vector<const OpDef*> ops;
  for (const std::string& name : command.ops) ops.push_back(&find_op(name));
  if (ops.empty()) ops = registered_ops();
  const Device device = open(command.device);
  if (!command.as_json && device.kind() != DeviceKind::cpu && !command.list) fmt::print("{} against the CPU in float64\n", device.backend().name());
  bool passed = true;
  for (const OpDef* op : ops) {
    if (command.sample) require_sample(*op, *command.sample, device);
    if (command.list)
      fmt::print("{:<24} {:>2} samples{}\n", op->name, sample_count(*op, device), op->reference ? ", reference" : "");
    else if (command.self_test)
      passed &= self_test(*op, command.options);
    else
      passed &= print(command, check(*op, command.sample, device, command.options), command.device, command.ops.empty());
    std::fflush(stdout);
  }
  return passed;
}

}  // namespace

void add_gradcheck(CLI::App& app) {
  const auto command = std::make_shared<GradcheckCommand>();
  CLI::App* parser = app.add_subcommand("gradcheck", "Check the gradient of every op against central differences");
  parser->footer(
      "Verdicts: PASS, FAIL, ERROR (the op threw), NONDETERMINISTIC (two runs differ), UNVERIFIABLE (the differences are less certain than\n"
      "the tolerance), SKIPPED. FAIL, ERROR and NONDETERMINISTIC exit with 1. How to read a report: docs/add_an_op.md.\n"
      "Example: sinkgrad gradcheck --op softmax --sample 2 --json > report.json && sinkgrad gradcheck --replay report.json");
  CLI::Option* op = parser->add_option("--op", command->ops, "the ops to check, with a full report [all, one line each]");
  parser->add_flag("--all", command->all, "every op, one line each (what happens without --op)")->excludes(op);
  CLI::Option* sample = parser->add_option("--sample", command->sample, "one sample of the op [all]")->check(natural_number)->needs(op);
  parser->add_option("--seed", command->options.seed, "of inputs and cotangents")->check(natural_number)->capture_default_str();
  parser->add_option("--budget", command->options.budget, "entries up to which a Jacobian is compared in full, a larger one at random")
      ->check(natural_number)
      ->capture_default_str();
  parser->add_flag("--strict", command->strict, "also UNVERIFIABLE and SKIPPED exit with 1");
  parser->add_flag("--json", command->as_json, "one JSON object per check, one per line");
  CLI::Option* mutants = parser->add_flag("--self-test", command->self_test, "put known errors into each backward: the check must catch every one");
  CLI::Option* list = parser->add_flag("--list", command->list, "list the ops and how many samples they have")->excludes(mutants);
  add_device_option(*parser, command->device, "cuda: compare its kernels with those of the CPU instead")->excludes(mutants);
  CLI::Option* again =
      parser->add_option("--replay", command->replay, "run the cases of a file written with --json")->excludes(op)->excludes(mutants);
  parser->add_option("--curve", command->curve, "draw the error of the sample's worst derivative over the step, as SVG")
      ->needs(op)
      ->needs(sample)
      ->excludes(mutants)
      ->excludes(list)
      ->excludes(again);
  parser->add_option("--load", command->libraries, "a shared library that registers ops, first; repeatable")->allow_extra_args(false);
  parser->callback([command] {
    if (!run(*command)) throw CLI::RuntimeError(1);
  });
}

}  // namespace sinkgrad
