// What commands that draw have in common: a figure is a page NAME.html or a chart NAME.svg, and where it shows new numbers, NAME.json holds them.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace sinkgrad {

class FigureFile {
 public:
  /// Before anything is computed: InputError, beginning with the command, for another ending; IoError when the folder does not exist.
  FigureFile(const std::string& command, const std::filesystem::path& path);
  bool is_page() const { return path_.extension() == ".html"; }
  void write(const std::string& drawing) const;
  void write_numbers(const nlohmann::ordered_json& numbers) const;
  std::string name() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace sinkgrad
