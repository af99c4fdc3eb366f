// A first pass runs every case and notes which barriers it reaches; a second runs, for each barrier, those cases without it, the quickest
// first, until one fails.
#include "simt/simt_mutants.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>

#include "core/check.h"
#include "simt/simt_jobs.h"

namespace sinkgrad::simt {
namespace {

struct Site {
  std::set<std::string> kernels;
  std::vector<std::pair<double, const Case*>> cases;  ///< that reach it, with the seconds they take
  std::string noticed, by;
};
using Sites = std::map<std::string, Site>;  // by name(): the kind and the place

/// "softmax_forward" of "softmax_forward<T, team, log_of>".
std::string short_name(const std::string& kernel) { return kernel.substr(0, kernel.find('<')); }

/// The barriers in the sources, as their sites are named. Device.h defines the words and uses none.
std::set<std::string> barriers_in(const std::string& folder) {
  std::set<std::string> found;
  const std::regex call(R"(\b(block_sync|warp_sync|cluster_sync|copy_async_wait)(<[^<>()]*>)?\(\))");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::filesystem::path& path = entry.path();
    if ((path.extension() != ".cu" && path.extension() != ".h") || path.filename() == "device.h") continue;
    std::ifstream in(path);
    int number = 0;
    for (std::string line; std::getline(in, line);) {
      ++number;
      line = line.substr(0, line.find("//"));
      for (std::sregex_iterator i(line.begin(), line.end(), call), end; i != end; ++i)
        found.insert(cat((*i)[1].str(), " cuda/", path.filename().string(), ":", number));
    }
  }
  return found;
}

/// Runs every case with all barriers in place. One that fails shows nothing about barriers.
int find_sites(const std::vector<Case>& cases, const MutantOptions& options, Sites& sites) {
  int failures = 0;
  run_cases(cases, options, [&](size_t i, const CaseEnd& end) {
    if (!end.failure.empty()) {
      ++failures;
      std::printf("%s, %s fails with all barriers in place: %s\n", cases[i].group.c_str(), cases[i].name.c_str(), end.failure.c_str());
      return;
    }
    for (const auto& [name, kernels] : end.sites) {
      if (name.find(" cuda/") == std::string::npos) continue;  // of a test's own kernel
      Site& site = sites[name];
      for (const std::string& kernel : kernels) site.kernels.insert(short_name(kernel));
      site.cases.emplace_back(end.seconds, &cases[i]);
    }
  });
  return failures;
}

void mutate(const MutantOptions& options, Sites& sites) {
  std::vector<Sites::value_type*> order;
  double longest = 0;
  for (auto& site : sites) {
    order.push_back(&site);
    auto& reaching = site.second.cases;
    std::stable_sort(reaching.begin(), reaching.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    double total = 0;
    for (const auto& [seconds, c] : reaching) total += seconds;
    longest = std::max(longest, total);
  }
  // A barrier that nobody misses runs all of its cases: that must not be taken for a hang.
  run_jobs(
      order.size(), options.jobs, options.time_limit + 5 * longest,
      [&](size_t i) {
        std::vector<const Case*> reaching;
        for (const auto& [seconds, c] : order[i]->second.cases) reaching.push_back(c);
        return to_text(run_without(order[i]->first, reaching));
      },
      [&](size_t i, const JobEnd& job) {
        Site& site = order[i]->second;
        if (!job.death.empty()) {
          site.noticed = job.death.substr(0, job.death.find(':'));
          return;
        }
        const CaseEnd end = case_end_of(job.output);
        site.noticed = end.noticed;
        site.by = end.failure.substr(0, end.failure.find(':'));
      });
}

void print_table(const std::vector<std::vector<std::string>>& rows, bool markdown) {
  std::vector<size_t> widths(rows[0].size(), 3);
  for (const auto& row : rows)
    for (size_t k = 0; k < row.size(); ++k) widths[k] = std::max(widths[k], row[k].size());
  auto print = [&](const std::vector<std::string>& row) {
    for (size_t k = 0; k < row.size(); ++k) {
      const bool last = k + 1 == row.size();
      std::printf("%s%-*s%s", markdown ? "| " : "", last && !markdown ? 0 : static_cast<int>(widths[k]), row[k].c_str(),
                  last       ? ""
                  : markdown ? " "
                             : "  ");
    }
    std::printf(markdown ? " |\n" : "\n");
  };
  print(rows[0]);
  std::vector<std::string> rule;
  for (const size_t w : widths) rule.emplace_back(w, '-');
  print(rule);
  for (size_t i = 1; i < rows.size(); ++i) print(rows[i]);
}

}  // namespace

int examine_barriers(const std::vector<Case>& cases, const MutantOptions& options) {
  Sites sites;
  const int failures = find_sites(cases, options, sites);
  std::set<std::string> unreached;
  if (!options.sources.empty())
    for (const std::string& name : barriers_in(options.sources))
      if (!sites.count(name)) unreached.insert(name);
  const bool mutating = options.task == BarrierTask::mutate;
  if (mutating) mutate(options, sites);

  std::vector<std::vector<std::string>> rows = {{"barrier", "word", "kernels"}};
  if (mutating) rows[0].insert(rows[0].end(), {"noticed as", "by"});
  size_t unnoticed = 0;
  auto add = [&](const std::string& name, const std::string& kernels, const std::string& noticed, const std::string& by) {
    const size_t space = name.find(' ');
    rows.push_back({name.substr(space + 1), name.substr(0, space), kernels});
    if (mutating) rows.back().insert(rows.back().end(), {noticed, by});
  };
  for (const auto& [name, site] : sites) {
    std::string kernels;
    for (const std::string& k : site.kernels) kernels += (kernels.empty() ? "" : ", ") + k;
    unnoticed += site.noticed.empty();
    add(name, kernels, site.noticed.empty() ? "NOT NOTICED" : site.noticed, site.by);
  }
  for (const std::string& name : unreached) add(name, "", "NOT REACHED by any case", "");
  std::sort(rows.begin() + 1, rows.end());
  print_table(rows, options.markdown);
  if (!mutating) {
    std::printf("\n%zu barriers, %zu reached by no case\n", sites.size() + unreached.size(), unreached.size());
    return failures;
  }
  std::printf("\n%zu barriers, %zu noticed, %zu not noticed, %zu reached by no case\n", sites.size() + unreached.size(), sites.size() - unnoticed,
              unnoticed, unreached.size());
  return failures + static_cast<int>(unnoticed + unreached.size());
}

}  // namespace sinkgrad::simt
