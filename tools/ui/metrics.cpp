// Lines are parsed one by one; a last line without a newline that does not parse is what a killed process leaves behind.
#include "tools/ui/metrics.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <limits>
#include <system_error>

#include "core/check.h"
#include "core/file.h"
#include "core/json.h"

namespace sinkgrad {
namespace {

using Json = nlohmann::json;
constexpr int kSchema = 1;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

double now() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }
/// To the millisecond, which keeps the lines short.
double rounded(double seconds) { return std::round(seconds * 1e3) / 1e3; }

struct Line {
  std::string text;  // without the newline
  Json json;
};

struct Lines {
  std::vector<Line> lines;
  bool torn = false;
};

Lines parse_lines(const std::filesystem::path& path) {
  constexpr uint64_t kMaxBytes = uint64_t{1} << 31;
  const std::string bytes = read_file(path, kMaxBytes);
  Lines parsed;
  for (size_t begin = 0; begin < bytes.size();) {
    const size_t end = std::min(bytes.find('\n', begin), bytes.size());
    Line line{bytes.substr(begin, end - begin), {}};
    try {
      line.json = parse_json(line.text, path.string());
    } catch (const InputError&) {  // it stays null
    }
    if (!line.json.is_object()) {
      parsed.torn = end == bytes.size();
      require<InputError>(parsed.torn, path.string(), ":", parsed.lines.size() + 1, ": requires a JSON object, got '", printable(line.text), "'");
      break;
    }
    parsed.lines.push_back(std::move(line));
    begin = end + 1;
  }
  const bool has_header = !parsed.lines.empty() && parsed.lines[0].json.value("schema", Json()).is_number_integer();
  require<InputError>(has_header, path.string(), ":1: requires a header with \"schema\": ", kSchema,
                      parsed.lines.empty() ? ", the file has no complete line" : "");
  require<InputError>(parsed.lines[0].json["schema"] == kSchema, path.string(), ":1: this program reads schema ", kSchema, ", got ",
                      printable(parsed.lines[0].json["schema"].dump()));
  return parsed;
}

int64_t step_of(const std::filesystem::path& path, size_t line, const Json& json) {
  const auto step = json.find("step");
  const bool ok = step != json.end() && step->is_number_integer() && step->get<int64_t>() >= 0;
  require<InputError>(ok, path.string(), ":", line, ": requires an integer \"step\" >= 0, got ",
                      step == json.end() ? "none" : printable(step->dump()));
  return step->get<int64_t>();
}

MetricsRow row_of(const std::filesystem::path& path, size_t line, const Json& json) {
  MetricsRow row;
  row.step = step_of(path, line, json);
  const Json split = json.value("split", Json());
  require<InputError>(split.is_string(), path.string(), ":", line, ": requires a string \"split\", got ", printable(split.dump()));
  row.split = split.get<std::string>();
  for (const auto& [key, value] : json.items()) {
    if (key == "step" || key == "split" || key == "nonfinite") continue;
    require<InputError>(value.is_number() || value.is_null(), path.string(), ":", line, ": \"", printable(key), "\" requires a number or null, got ",
                        printable(value.dump()));
    const double number = value.is_null() ? kNan : value.get<double>();
    if (key == "t") {
      row.time = number;
    } else if (key == "epoch") {
      row.epoch = number;
    } else {
      row.values.emplace_back(key, number);
    }
  }
  return row;
}

std::FILE* open_for_appending(const std::filesystem::path& path) {
  std::FILE* file = std::fopen(path.c_str(), "ae");
  require<IoError>(file != nullptr, path.string(), ": opening for writing failed: ", std::generic_category().message(errno));
  return file;
}

}  // namespace

double MetricsRow::value(const std::string& name) const {
  const auto found = std::find_if(values.begin(), values.end(), [&](const auto& value) { return value.first == name; });
  return found == values.end() ? kNan : found->second;
}

bool MetricsRow::has(const std::string& name) const {
  return std::any_of(values.begin(), values.end(), [&](const auto& value) { return value.first == name; });
}

MetricsFile read_metrics(const std::filesystem::path& path) {
  Lines parsed = parse_lines(path);
  MetricsFile file;
  file.header = std::move(parsed.lines[0].json);
  file.torn = parsed.torn;
  for (size_t i = 1; i < parsed.lines.size(); ++i)
    if (!parsed.lines[i].json.contains("event")) file.rows.push_back(row_of(path, i + 1, parsed.lines[i].json));
  return file;
}

MetricsWriter::MetricsWriter(std::filesystem::path path, int64_t first_step)
    : path_(std::move(path)), file_(open_for_appending(path_)), events_(path_.parent_path(), first_step, now()) {}

MetricsWriter MetricsWriter::create(const std::filesystem::path& path, const Json& header) {
  std::error_code absent;
  const bool exists = std::filesystem::file_size(path, absent) > 0 && !absent;
  require<InputError>(!exists, path.string(), ": a new run requires a folder without metrics, resume that run or choose another folder");
  MetricsWriter writer(path, 0);
  nlohmann::ordered_json line{{"schema", kSchema}, {"t", rounded(now())}};
  for (const auto& [key, value] : header.items()) line[key] = value;
  writer.append(line);
  return writer;
}

MetricsWriter MetricsWriter::resume(const std::filesystem::path& path, int64_t step) {
  const Lines parsed = parse_lines(path);
  std::string kept = parsed.lines[0].text + '\n';
  int64_t dropped = parsed.torn;
  for (size_t i = 1; i < parsed.lines.size(); ++i) {
    const bool keep = step_of(path, i + 1, parsed.lines[i].json) <= step;
    keep ? void(kept += parsed.lines[i].text + '\n') : void(++dropped);
  }
  write_file(path, kept);
  MetricsWriter writer(path, step + 1);
  writer.append({{"t", rounded(now())}, {"step", step}, {"event", "resume"}, {"dropped", dropped}});
  return writer;
}

void MetricsWriter::write(const MetricsRow& row) {
  const double time = rounded(row.time != 0 ? row.time : now());
  nlohmann::ordered_json line{{"t", time}, {"step", row.step}, {"epoch", row.epoch}, {"split", row.split}};
  std::string nonfinite;
  for (const auto& [name, value] : row.values) {
    line[name] = value;  // a number that is not finite becomes null
    if (!std::isfinite(value)) nonfinite += (nonfinite.empty() ? "" : ",") + name;
  }
  if (!nonfinite.empty()) line["nonfinite"] = nonfinite;
  append(line);
  std::vector<std::pair<std::string, double>> scalars = row.values;
  for (auto& [name, value] : scalars) name += '/' + row.split;
  events_.write(time, row.step, scalars);
}

void MetricsWriter::append(const nlohmann::ordered_json& object) {
  const std::string line = object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
  const bool written = std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size() && std::fflush(file_.get()) == 0;
  require<IoError>(written, path_.string(), ": writing failed: ", std::generic_category().message(errno));
}

}  // namespace sinkgrad
