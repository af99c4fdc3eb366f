// What is wrong with a JSON text, in our words and not in those of its library.
#pragma once
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

namespace sinkgrad {

/// "line 3, column 1: unexpected '}'", or of JSON that holds something else "key 'op' not found".
inline std::string json_problem(const nlohmann::json::exception& error) {
  const std::string what =
      error.what();  // "[json.exception.parse_error.101] parse error at line 3, column 1: syntax error while ... - unexpected '}'; ..."
  static const std::regex code(R"(^\[json\.exception\.[^\]]*\] )"), place(R"(^parse error at (line \d+, column \d+): .*? - ([^;]*).*)");
  return std::regex_replace(std::regex_replace(what, code, ""), place, "$1: $2");
}

}  // namespace sinkgrad
