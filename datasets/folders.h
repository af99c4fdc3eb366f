// Files of a data set that lie in folders, in an order that does not depend on the file system.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace sinkgrad {

/// Files of a folder whose names end in `suffix` in any case, those with equal text before a final number in order of the number.
std::vector<std::filesystem::path> files_by_number(const std::filesystem::path& folder, const std::string& suffix);
/// Names of the folders in a folder, sorted.
std::vector<std::string> subfolders(const std::filesystem::path& folder);

}  // namespace sinkgrad
