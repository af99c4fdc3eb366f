// Places in the source: how they are written, when two are the same, and the barriers among them.
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "simt/machine.h"

namespace sinkgrad::simt {
namespace {

std::deque<BarrierSite> g_sites;

/// What a barrier call costs to look up: its site, by the address of what the compiler wrote down about the place.
struct CachedSite {
  const void* key = nullptr;
  BarrierSite* site = nullptr;
  uint64_t launch = 0;  ///< the last one that reached it
  bool skipped = false;
};
std::array<CachedSite, 1024> g_cache;

const void* key_of(const Place& place) {
  static_assert(sizeof(Place) == sizeof(void*), "a source_location is a pointer to a constant of its own");
  return std::bit_cast<const void*>(place);
}

BarrierSite& find_site(const char* kind, const Place& place) {
  const std::string where = text(place);
  for (BarrierSite& s : g_sites)  // one header compiled into several files, one template with several arguments
    if (s.place == where && s.kind == kind) return s;
  return g_sites.emplace_back(BarrierSite{.kind = kind, .place = where});
}

}  // namespace

std::string text(const Place& place) {
  std::string file = place.file_name();
  for (const char* folder : {"cuda/", "tests/"})
    if (const size_t at = file.rfind(folder); at != std::string::npos) file = file.substr(at);
  return cat(file, ":", place.line());
}

bool same_place(const Place& a, const Place& b) {
  return key_of(a) == key_of(b) || (a.line() == b.line() && a.column() == b.column() && !std::strcmp(a.file_name(), b.file_name()));
}

const std::deque<BarrierSite>& barrier_sites() { return g_sites; }

bool reach_barrier(const char* kind, const Place& place) {
  const void* key = key_of(place);
  CachedSite& c = g_cache[reinterpret_cast<uintptr_t>(key) / 8 % g_cache.size()];
  if (c.key != key || c.launch != g_machine.serial) {
    static std::unordered_map<const void*, BarrierSite*> known;
    BarrierSite*& site = known[key];
    if (!site) site = &find_site(kind, place);
    site->kernels.insert(g_machine.kernel);
    const std::string& skipped = settings().skipped_barrier;
    c = {key, site, g_machine.serial, !skipped.empty() && site->name() == skipped};
  }
  ++c.site->reached;
  return !c.skipped;
}

namespace {

struct ReportAtEnd {
  ~ReportAtEnd() {
    const char* file = std::getenv("SIMT_REPORT");
    if (!file) return;
    nlohmann::json report = {{"fault", first_fault()}, {"sites", nlohmann::json::object()}};
    for (const BarrierSite& site : g_sites) report["sites"][site.name()] = site.kernels;
    std::ofstream(file) << report;
  }
} g_report_at_end;

}  // namespace

}  // namespace sinkgrad::simt
