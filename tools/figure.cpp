// The page or chart appears last: when it is there, so are its numbers.
#include "tools/figure.h"

#include "core/check.h"
#include "core/file.h"

namespace sinkgrad {

FigureFile::FigureFile(const std::string& command, const std::filesystem::path& path) : path_(path) {
  require<InputError>(is_page() || path.extension() == ".svg", command, ": a figure requires a name that ends in .html or .svg, got '", path.string(),
                      "'");
  require<IoError>(!path.has_parent_path() || std::filesystem::is_directory(path.parent_path()), path.string(), ": its folder does not exist");
}

void FigureFile::write(const std::string& drawing) const { write_file(path_, drawing); }

void FigureFile::write_numbers(const nlohmann::ordered_json& numbers) const {
  write_file(std::filesystem::path(path_).replace_extension(".json"), numbers.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace sinkgrad
