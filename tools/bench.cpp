// `sinkgrad bench`: times ops, fused attention and training steps on a device, and says what fraction of the device's own ceilings
// (a large copy, a large matrix product) each reaches.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/file.h"
#include "core/parallel.h"
#include "tools/benchmark.h"
#include "tools/commands.h"
#include "tools/option_checks.h"
#include "tools/shared_options.h"

namespace sinkgrad {
namespace {

struct BenchCommand {
  std::string device = "cpu", precision = "f32", filter, json, values;
  std::vector<std::string> suites;
  double seconds = 0.2;
  bool large = false, profile = false, floors = false, processor_time = false;
};

using Json = nlohmann::ordered_json;

Json to_json(const Work& w, double seconds, const Ceilings& c) {
  const double least = floor_seconds(w, c);
  return {{"seconds", seconds}, {"bytes", w.bytes},       {"flops", w.flops},
          {"exps", w.exps},     {"floor_seconds", least}, {"fraction_of_ceiling", seconds > 0 ? least / seconds : 0}};
}

void print_line(const std::string& name, const Json& forward, const Json& backward) {
  auto part = [](const Json& j) {
    const double s = j.at("seconds");
    return fmt::format("{:>10.1f} us {:>7.0f} GB/s {:>8.0f} GFLOP/s {:>4.0f} %", s * 1e6, s > 0 ? j.at("bytes").get<double>() / s / 1e9 : 0,
                       s > 0 ? j.at("flops").get<double>() / s / 1e9 : 0, 100 * j.at("fraction_of_ceiling").get<double>());
  };
  fmt::print("{:<28} {}   {}\n", name, part(forward), part(backward));
  std::fflush(stdout);
}

void run(const BenchCommand& command) {
  if (command.floors) {  // an H200: copy and product rates read on one, exponentials and FMAs from 132 multiprocessors at 1.755 GHz
    fmt::print("{}", attention_floors({"an NVIDIA H200", 4.3e12, 790e12, 3.7e12, 2.97e13}));
    return;
  }
  std::string note;
  const Device device = open_device(command.device, note);
  if (!note.empty()) fmt::print(stderr, "{}\n", note);
  const Precision precision = precision_named(command.precision);
  auto wanted = [&](const std::string& suite) {
    return command.suites.empty() || std::find(command.suites.begin(), command.suites.end(), suite) != command.suites.end();
  };
  require(!command.processor_time || (device.kind() == DeviceKind::cpu && threads() == 1),
          "bench: --processor-time is that of one thread on the CPU, got ", threads(), " threads on ", device.backend().name());
  const Stopwatch time{device, command.seconds, command.processor_time};
  const Ceilings ceilings = measure_ceilings(time, precision);
  Json report{{"device", device.backend().name()},
              {"threads", threads()},
              {"precision", command.precision},
              {"copy_bytes_per_second", ceilings.copy_bytes},
              {"gemm_flops_per_second", ceilings.gemm_flops},
              {"cases", Json::array()}};
  fmt::print("device {}, {} products: copy {:.0f} GB/s, matrix product {:.0f} GFLOP/s\n", device.backend().name(), command.precision,
             ceilings.copy_bytes / 1e9, ceilings.gemm_flops / 1e9);
  fmt::print("{:<28} {:>10}{:>44}\n", "case", "forward", "backward");
  std::vector<BenchCase> cases;
  for (auto& list : {op_cases(), attention_cases(!command.large, device.kind())})
    for (const BenchCase& c : list)
      if (wanted(c.suite) && c.name.find(command.filter) != std::string::npos) cases.push_back(c);
  for (const BenchCase& c : cases) {
    const BenchResult r = measure(c, time, precision);
    const Json forward = to_json(c.forward, r.forward.median, ceilings),
               backward = to_json(c.backward, std::max(0.0, r.both.median - r.forward.median), ceilings);
    print_line(c.name, forward, backward);
    Json entry{{"suite", c.suite}, {"name", c.name}};
    for (const auto& [key, value] : c.parameters) entry[key] = value;
    entry.update({{"forward", forward}, {"backward", backward}, {"tape_bytes", r.tape_bytes}, {"samples", r.both.samples}});
    report["cases"].push_back(entry);
    if (!command.values.empty() && c.suite == "attention") write_values(c, device, precision, command.values);
  }
  if (wanted("steps"))
    for (const StepCase& c : step_cases()) {
      if (c.name.find(command.filter) == std::string::npos) continue;
      const StepTiming t = time_training_step(c, time, precision, command.profile);
      fmt::print("{:<28} {:>10.1f} us an update of {} items, {:.0f} MB on the tape\n", c.name, t.time.median * 1e6, c.batch,
                 static_cast<double>(t.tape_bytes) / 1e6);
      Json ops = Json::object();
      for (const auto& [name, op] : t.ops) {
        fmt::print("  {:<22} {:>4} {:>10.1f} {:>10.1f} us\n", name, op.calls, op.forward * 1e6, op.backward * 1e6);
        ops[name] = {{"calls", op.calls}, {"forward", op.forward}, {"backward", op.backward}};
      }
      std::fflush(stdout);
      report["cases"].push_back({{"suite", "steps"},
                                 {"name", c.name},
                                 {"seconds", t.time.median},
                                 {"samples", t.time.samples},
                                 {"items", c.batch},
                                 {"parameters", t.parameters},
                                 {"tape_bytes", t.tape_bytes},
                                 {"ops", ops}});
    }
  if (!command.json.empty()) write_file(command.json, report.dump(2) + "\n");
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* sub = app.add_subcommand("bench", "Time ops, attention and training steps on a device");
  auto command = std::make_shared<BenchCommand>();
  add_device_option(*sub, command->device, "where to compute");
  sub->add_option("--precision", command->precision, "of the operands of matrix products")
      ->check(CLI::IsMember({"f32", "tf32", "bf16"}))
      ->capture_default_str();
  sub->add_option("--suite", command->suites, "ops, attention, steps [all]")->check(CLI::IsMember({"ops", "attention", "steps"}));
  sub->add_option("--filter", command->filter, "only cases whose name contains this");
  sub->add_option("--seconds", command->seconds, "of running per measurement, at least")->check(positive_number)->capture_default_str();
  sub->add_flag("--processor-time", command->processor_time, "time what one thread computes, not what passes (OMP_NUM_THREADS=1; for busy machines)");
  sub->add_flag("--large", command->large, "attention at the sizes of a large GPU");
  sub->add_flag("--profile", command->profile, "of training steps also the time of each op, forward and backward");
  sub->add_flag("--floors", command->floors, "only print the least work and time of the large attention cases, as Markdown");
  sub->add_option("--values", command->values, "also write the tensors of the (last) attention case to this safetensors file");
  sub->add_option("--json", command->json, "also write the results to this file");
  sub->footer(
      "Example: sinkgrad bench --suite attention --filter 256x256 --json bench.json\n"
      "Times are medians; the fraction is that of the larger of bytes over copy rate and FLOPs over product rate.");
  sub->callback([command] { run(*command); });
}

}  // namespace sinkgrad
