// Checks of command line values, with one short sentence each.
#pragma once
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdlib>
#include <string>

namespace sinkgrad {

namespace detail {
inline std::string check_number(const std::string& text, bool whole, bool zero) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  const bool ok = !text.empty() && *end == '\0' && std::isfinite(value) && (zero ? value >= 0 : value > 0) && (!whole || value == std::floor(value));
  if (!ok) return std::string("must be a ") + (zero ? "non-negative " : "positive ") + (whole ? "integer" : "number") + ", got " + text;
  // What counts things fits an int, what only names them a double.
  const double most = zero ? 9007199254740992.0 : 2147483647.0;
  return !whole || value <= most ? "" : "must be at most " + std::to_string(static_cast<long long>(most)) + ", got " + text;
}
}  // namespace detail

/// Integers from 1, integers from 0, numbers from 0, and numbers above 0.
inline const CLI::Validator positive_integer([](const std::string& s) { return detail::check_number(s, true, false); }, "");
inline const CLI::Validator natural_number([](const std::string& s) { return detail::check_number(s, true, true); }, "");
inline const CLI::Validator non_negative_number([](const std::string& s) { return detail::check_number(s, false, true); }, "");
inline const CLI::Validator positive_number([](const std::string& s) { return detail::check_number(s, false, false); }, "");

}  // namespace sinkgrad
