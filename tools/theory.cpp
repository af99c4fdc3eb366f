// `sinkgrad theory`: the statements of the paper's sections 3 and 5 as numbers against their known answers and as figures.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>

#include "core/check.h"
#include "core/file.h"
#include "core/names.h"
#include "core/parallel.h"
#include "core/version.h"
#include "tools/commands.h"
#include "tools/option_checks.h"
#include "tools/shared_options.h"
#include "tools/theory/demonstration.h"
#include "tools/ui/html.h"
#include "tools/ui/svg.h"

namespace sinkgrad {
namespace {

struct TheoryOptions {
  std::vector<std::string> names;
  std::string out = "theory.html";
  uint64_t seed = 1;
  int threads = 0;
};

std::vector<const DemonstrationEntry*> chosen(const std::vector<std::string>& names) {
  std::vector<const DemonstrationEntry*> entries;
  std::vector<std::string> known;
  for (const DemonstrationEntry& entry : demonstrations()) {
    known.push_back(entry.name);
    if (names.empty() || std::ranges::count(names, entry.name) > 0) entries.push_back(&entry);
  }
  for (const std::string& name : names)
    require<InputError>(std::ranges::count(known, name) > 0, "theory: unknown demonstration '", name, "'", did_you_mean(name, known), "; there are ",
                        fmt::format("{}", fmt::join(known, ", ")));
  return entries;
}

void print(const Demonstration& demo) {
  fmt::print("{}\n", demo.title);
  for (const Check& check : demo.checks)
    fmt::print("  {:<6}  {:<12.6g} {:<20} {}\n", check.ok ? "ok" : "FAILED", check.value, check.known, check.what);
  std::fflush(stdout);
}

void add_to(HtmlPage& page, const Demonstration& demo) {
  page.section(demo.title).paragraph(demo.statement);
  const auto failed = std::ranges::count_if(demo.checks, [](const Check& check) { return !check.ok; });
  if (failed > 0)
    page.verdict(Verdict::bad, fmt::format("{} of {} numbers do not agree with the known answers", failed, demo.checks.size()));
  else
    page.verdict(Verdict::good, fmt::format("all {} numbers agree with the known answers", demo.checks.size()));
  for (const Figure& figure : demo.figures) page.figure(figure.charts, figure.caption);
  std::vector<std::vector<std::string>> rows;
  for (const Check& check : demo.checks) rows.push_back({check.what, format_number(check.value), check.known, check.ok ? "ok" : "failed"});
  page.table({"what", "measured", "known", ""}, rows);
}

nlohmann::ordered_json json_of(const Demonstration& demo) {
  nlohmann::ordered_json checks;
  for (const Check& check : demo.checks) checks.push_back({{"what", check.what}, {"value", check.value}, {"known", check.known}, {"ok", check.ok}});
  return {{"title", demo.title}, {"ok", demo.ok()}, {"checks", checks}, {"data", demo.data}};
}

void theory(const TheoryOptions& options) {
  const std::filesystem::path path = options.out;
  require<InputError>(path.extension() == ".html", "theory: --out requires a name that ends in .html, got '", options.out, "'");
  require<IoError>(path.parent_path().empty() || std::filesystem::is_directory(path.parent_path()), path.string(), ": its folder does not exist");
  const std::vector<const DemonstrationEntry*> entries = chosen(options.names);
  if (options.threads > 0) set_threads(options.threads);
  HtmlPage page("Sinkformers: the theory in numbers and pictures",
                fmt::format("sinkgrad {} theory{} \u00b7 seed {} \u00b7 float64 on the CPU", SINKGRAD_VERSION,
                            options.names.empty() ? "" : fmt::format(" {}", fmt::join(options.names, " ")), options.seed));
  page.paragraph(
      "Sander, Ablin, Blondel, Peyr\u00e9: Sinkformers, 2022. Attention is a flow of particles x_i with scores c_ij = x_i\u1d40 M x_j; all numbers "
      "come "
      "from this program's own Sinkhorn and its tape.");
  nlohmann::ordered_json json{{"schema", 1}, {"version", SINKGRAD_VERSION}, {"seed", options.seed}};
  bool ok = true;
  for (const DemonstrationEntry* entry : entries) {
    const Demonstration demo = entry->run(options.seed);
    print(demo);
    add_to(page, demo);
    json["demonstrations"][entry->name] = json_of(demo);
    ok = ok && demo.ok();
  }
  std::filesystem::path data = path;
  data.replace_extension(".json");
  write_file(data, json.dump(1) + "\n");
  write_file(path, page.str());
  fmt::print("{}\nThe page is {}, its numbers are in {}\n", ok ? "All numbers agree with the known answers." : "Some numbers do NOT agree.",
             path.string(), data.string());
  if (!ok) throw CLI::RuntimeError(1);
}

}  // namespace

void add_theory(CLI::App& app) {
  const auto options = std::make_shared<TheoryOptions>();
  CLI::App* command = app.add_subcommand("theory", "Show the paper's propositions as numbers against the known answers and as figures");
  std::string list = "Demonstrations:\n";
  for (const DemonstrationEntry& entry : demonstrations()) list += fmt::format("  {:<12} {}\n", entry.name, entry.summary);
  command->footer(list + "Exit code 1 when a number does not agree.\nExample: sinkgrad theory energy diffusion --out theory.html");
  command->add_option("names", options->names, "which demonstrations [all]");
  command->add_option("-o,--out", options->out, "the HTML page; its numbers go beside it, ending in .json")->capture_default_str();
  command->add_option("--seed", options->seed, "of random particles and weights")->check(natural_number)->capture_default_str();
  add_threads_option(*command, options->threads);
  command->callback([options] { theory(*options); });
}

}  // namespace sinkgrad
