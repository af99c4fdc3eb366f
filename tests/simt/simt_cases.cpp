// Cases are run in processes of their own (simt_jobs.h); their ends travel as JSON.
#include "simt/simt_cases.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/gradcheck.h"
#include "core/parallel.h"
#include "simt/executor.h"
#include "simt/simt_jobs.h"

namespace sinkgrad::simt {
namespace {

using nlohmann::json;

CaseEnd compare(const OpDef& op, size_t sample, std::optional<DType> dtype) {
  CaseEnd end;
  set_threads(1);  // the other cores run other cases
  try {
    const GradcheckReport r = crosscheck(op, sample, Device::cuda());
    for (const GradcheckFinding& f : r.findings)
      if (!f.ok && (!dtype || f.check.ends_with(name_of(*dtype)))) {
        end.failure = r.text();
        end.noticed = "wrong result";
      }
  } catch (const KernelError& e) {
    end.failure = e.what();
    end.noticed = name_of(e.fault);
  } catch (const std::exception& e) {
    end.failure = e.what();
    end.noticed = "error";
  }
  for (const BarrierSite& site : barrier_sites()) end.sites[site.name()] = site.kernels;
  return end;
}

std::string shell_quoted(const std::string& word) {
  std::string q = "'";
  for (const char c : word) q += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return q + "'";
}

/// What a shell command prints, and its exit status.
std::pair<std::string, int> run_command(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  require<IoError>(pipe != nullptr, command, ": cannot be run");
  std::string output;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) output.append(buffer, n);
  return {output, pclose(pipe)};
}

CaseEnd run_test_case(const std::string& program, const std::string& name) {
  const std::filesystem::path report = std::filesystem::temp_directory_path() / cat("simt_report_", getpid());
  setenv("SIMT_REPORT", report.c_str(), 1);
  setenv("SIMT_SKIP_BARRIER", settings().skipped_barrier.c_str(), 1);
  setenv("OMP_NUM_THREADS", "1", 1);
  std::string pattern;  // a name is a pattern to Catch2
  for (const char c : name) pattern += c == ',' || c == '[' || c == '*' ? std::string("\\") + c : std::string(1, c);
  const auto [output, status] = run_command(shell_quoted(program) + " " + shell_quoted(pattern) + " --abort 2>&1");
  CaseEnd end;
  std::stringstream text;
  text << std::ifstream(report).rdbuf();
  std::filesystem::remove(report);
  const json j = json::parse(text.str(), nullptr, false);
  if (j.is_object()) end.sites = j["sites"].get<decltype(end.sites)>();
  if (status != 0) {
    end.failure = output;
    const bool too_long = WIFEXITED(status) ? WEXITSTATUS(status) == 128 + SIGXCPU : WTERMSIG(status) == SIGXCPU;
    const std::string fault = j.is_object() ? j["fault"].get<std::string>() : too_long ? "hang" : "crash";
    end.noticed = fault.empty() ? "wrong result" : fault;
  }
  return end;
}

}  // namespace

std::vector<Case> cases_of_op(const std::string& name, std::optional<DType> dtype) {
  const OpDef& op = find_op(name);
  if (!op.cuda.forward) {
    const std::string missing = cat("the op is registered, but no file in cuda/ calls register_cuda_kernels(\"", name, "\", ...)");
    return {{name, "no CUDA kernel", [missing] { return CaseEnd{missing, "error", {}}; }}};
  }
  std::vector<Case> cases;
  for (size_t s = 0; s < op.samples().size(); ++s) cases.push_back({name, cat("sample ", s), [&op, s, dtype] { return compare(op, s, dtype); }});
  return cases;
}

std::vector<Case> cases_of_program(const std::string& path) {
  require<InputError>(std::filesystem::exists(path), path, ": no such program");
  std::vector<Case> cases;
  std::istringstream names(run_command(shell_quoted(path) + " --list-test-names-only").first);
  const std::string group = std::filesystem::path(path).filename();
  for (std::string name; std::getline(names, name);)
    if (!name.empty()) cases.push_back({group, name, [path, name] { return run_test_case(path, name); }});
  require<InputError>(!cases.empty(), path, ": lists no test cases");
  return cases;
}

std::string to_text(const CaseEnd& e) {
  return json{{"failure", e.failure}, {"noticed", e.noticed}, {"sites", e.sites}}.dump(-1, ' ', false, json::error_handler_t::replace);
}
CaseEnd case_end_of(const std::string& text) {
  const json j = json::parse(text);
  return {j["failure"], j["noticed"], j["sites"].get<decltype(CaseEnd::sites)>()};
}

void run_cases(const std::vector<Case>& cases, const RunOptions& options, const std::function<void(size_t, const CaseEnd&)>& done) {
  run_jobs(
      cases.size(), options.jobs, options.time_limit, [&](size_t i) { return to_text(cases[i].run()); },
      [&](size_t i, const JobEnd& job) {
        CaseEnd end = job.death.empty() ? case_end_of(job.output) : CaseEnd{job.death, job.death.substr(0, job.death.find(':')), {}};
        end.seconds = job.seconds;
        done(i, end);
      });
}

CaseEnd run_without(const std::string& site, const std::vector<const Case*>& cases) {
  settings().skipped_barrier = site;
  for (const Case* c : cases) {
    CaseEnd end = c->run();
    if (end.failure.empty()) continue;
    end.failure = cat(c->group, ", ", c->name, ": ", end.failure);
    return end;
  }
  return {};
}

}  // namespace sinkgrad::simt
