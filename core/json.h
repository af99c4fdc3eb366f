// JSON from files and people: parsed strictly, refused in our words and not in those of its library.
#pragma once
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/check.h"
#include "core/names.h"

namespace sinkgrad {

/// "line 3, column 1: unexpected '}'", or of JSON that holds something else "key 'op' not found".
inline std::string json_problem(const nlohmann::json::exception& error) {
  // "[json.exception.parse_error.101] parse error at line 3, column 1: syntax error while parsing value - unexpected '}'; expected ..."
  std::string_view what = error.what();
  what.remove_prefix(std::min(what.find("] ") + 2, what.size()));
  constexpr std::string_view kPlace = "parse error at ";
  const size_t colon = what.find(": "), dash = what.find(" - ");
  if (!what.starts_with(kPlace) || colon == what.npos || dash == what.npos) return printable(what);
  const std::string_view place = what.substr(kPlace.size(), colon - kPlace.size()), problem = what.substr(dash + 3);
  return cat(place, ": ", printable(problem.substr(0, problem.find("; "))));
}

/// A number; as a string "nan", "inf" or "-inf", which JSON's numbers lack.
inline nlohmann::ordered_json json_number(double x) {
  if (std::isfinite(x)) return x;
  return std::isnan(x) ? "nan" : x > 0 ? "inf" : "-inf";
}

/// Parses JSON of type J (nlohmann::json or ordered_json). InputError, beginning with `source`, when it is none, a key occurs twice in an
/// object (the library would keep the last silently), or arrays and objects are nested more than 64 deep: copying and printing recurse.
template <class J = nlohmann::json>
J parse_json(std::string_view text, const std::string& source) {
  constexpr int kDeepest = 64;
  std::vector<std::set<std::string>> keys;  // of the open objects
  const auto check = [&](int depth, typename J::parse_event_t event, J& value) {
    using Event = typename J::parse_event_t;
    require<InputError>(depth <= kDeepest, source, ": JSON must be nested at most ", kDeepest, " deep, got more");
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event == Event::key) {
      const std::string& key = value.template get_ref<const std::string&>();
      require<InputError>(keys.back().insert(key).second, source, ": the key \"", printable(key), "\" occurs twice in one object");
    }
    return true;
  };
  try {
    return J::parse(text, check);
  } catch (const typename J::exception& error) {
    throw InputError(cat(source, ": must be JSON: ", json_problem(error)));
  }
}

}  // namespace sinkgrad
