// What a file holds is told by its first bytes, so that pipes need no name.
#include "tools/ui/matrix.h"

#include <cmath>
#include <cstdlib>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "core/file.h"
#include "core/json.h"
#include "core/npy.h"

namespace sinkgrad {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 30;

struct Rows {
  const std::string& name;
  std::vector<double> values = {};
  int64_t rows = 0, columns = 0;

  /// Ends a row that began at `size`; `place` says where it is.
  void end_row(size_t size, const std::string& place) {
    const auto count = static_cast<int64_t>(values.size() - size);
    require<InputError>(rows == 0 || count == columns, name, place, ": the row has ", count, " numbers, the rows before have ", columns);
    columns = count;
    ++rows;
  }
  Tensor matrix() const {
    require<InputError>(rows > 0 && columns > 0, name, ": requires a matrix with at least one number, got none");
    return Tensor::of<double>({rows, columns}, values);
  }
};

Tensor parse_json_matrix(std::string_view text, const std::string& name) {
  nlohmann::json content = parse_json(text, name);
  if (content.is_object()) {
    require<InputError>(content.contains("C"), name, ": a JSON object requires the matrix under \"C\"");
    content = nlohmann::json(content["C"]);
  }
  require<InputError>(content.is_array(), name, ": requires an array of rows, got ", content.type_name());
  Rows rows{name};
  for (const nlohmann::json& row : content) {
    const size_t begin = rows.values.size();
    const std::string place = cat(", row ", rows.rows);
    require<InputError>(row.is_array(), name, place, ": requires an array of numbers, got ", row.type_name());
    for (const nlohmann::json& value : row) {
      const bool infinite = value == "-inf" || value == "inf";  // JSON has no such numbers
      require<InputError>(value.is_number() || infinite, name, place, ": requires numbers or \"-inf\", got ", printable(value.dump()));
      rows.values.push_back(infinite ? (value == "-inf" ? -HUGE_VAL : HUGE_VAL) : value.get<double>());
    }
    rows.end_row(begin, place);
  }
  return rows.matrix();
}

/// The numbers of one line or of the part up to a semicolon.
void parse_row(std::string_view text, const std::string& place, Rows& rows) {
  const size_t begin = rows.values.size();
  bool after_comma = false;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(" \t\r"), text.size()));
    if (text.empty()) break;
    const std::string word(text.substr(0, text.find_first_of(" \t\r,")));
    char* end = nullptr;
    const double value = std::strtod(word.c_str(), &end);
    require<InputError>(!word.empty() && end == word.c_str() + word.size(), rows.name, place,
                        ": requires numbers separated by blanks or commas, got '", printable(word), "'");
    rows.values.push_back(value);
    text.remove_prefix(word.size());
    text.remove_prefix(std::min(text.find_first_not_of(" \t\r"), text.size()));
    after_comma = text.starts_with(',');
    if (after_comma) text.remove_prefix(1);
  }
  require<InputError>(!after_comma, rows.name, place, ": the row ends in a comma");
  if (rows.values.size() > begin) rows.end_row(begin, place);
}

}  // namespace

Tensor parse_matrix(std::string_view text, const std::string& name) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && (text[first] == '[' || text[first] == '{')) return parse_json_matrix(text.substr(first), name);
  Rows rows{name};
  std::istringstream lines{std::string(text)};
  size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream parts(line.substr(0, line.find('#')));
    for (std::string part; std::getline(parts, part, ';');) parse_row(part, cat(", line ", number), rows);
  }
  return rows.matrix();
}

Tensor read_matrix(const std::string& path, std::istream& in) {
  const bool piped = path == "-";
  const std::string name = piped ? "standard input" : path;
  const std::string bytes = piped ? std::string(std::istreambuf_iterator<char>(in), {}) : read_file(path, kMostBytes);
  if (!bytes.starts_with("\x93NUMPY")) {
    require<InputError>(!name.ends_with(".npy"), name, ": is no .npy file: it does not begin with \\x93NUMPY");
    return parse_matrix(bytes, name);
  }
  const Tensor array = parse_npy(bytes, name);
  require<InputError>(array.shape().rank() == 2 && array.count() > 0, name, ": requires a matrix, got shape ", array.shape());
  return Tensor::of<double>(array.shape(), to_doubles(array.view()));
}

}  // namespace sinkgrad
