// Help for mistyped names.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace sinkgrad {

/// Number of single-character edits between two names.
size_t edit_distance(std::string_view a, std::string_view b);
/// The candidate closest to `name` among those that resemble it: at most half of the characters differ, or it begins with `name`. Empty when
/// there is none.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);
/// "; did you mean 'x'?" for error messages; empty when no candidate resembles the name.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace sinkgrad
