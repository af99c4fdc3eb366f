// Names and other words of people and files in messages, and help for mistyped ones.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace sinkgrad {

/// Text of a file or a user as part of a one-line message: control characters escaped (`\x1b`), cut after about 80 bytes.
std::string printable(std::string_view text);
/// Number of single-character edits between two names.
size_t edit_distance(std::string_view a, std::string_view b);
/// The candidate closest to `name` among those that resemble it: at most half of the characters differ, or it begins with `name`. Empty when
/// there is none.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);
/// "; did you mean 'x'?" for error messages; empty when no candidate resembles the name.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);
/// The same, or "; there are 'a', 'b', 'c'" where none resembles it.
std::string what_there_is(std::string_view name, const std::vector<std::string>& candidates);

}  // namespace sinkgrad
