// Tiny text data sets in the original layouts: aclImdb's tree, and parallel text that is raw or prepared.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>

#include "core/file.h"

namespace tiny {

inline void write_text(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::create_directories(path.parent_path());
  sinkgrad::write_file(path, text);
}

/// folder/aclImdb with four training and two test reviews, and what else is found there.
inline void write_reviews(const std::filesystem::path& folder) {
  const auto write = [&](const char* name, std::string_view text) { write_text(folder / "aclImdb" / name, text); };
  write("README", "Large Movie Review Dataset v1.0");
  write("train/urls_pos.txt", "http://example.org\n");
  write("train/unsup/0_0.txt", "no label");
  write("train/neg/1_1.txt", "dull and dull again<br /><br />really dull");
  write("train/neg/0_4.txt", "\ta weak film\twith a weak plot  \nsecond line");
  write("train/pos/0_9.txt", "a great film with a great plot");
  write("train/pos/12_10.txt", "Caf\xc3\xa9 scenes, great and great again");
  write("train/pos/.hidden", "\xff");
  write("test/neg/0_2.txt", "weak and dull");
  write("test/pos/0_7.txt", "great plot, great film");
}

/// SPLIT.de and SPLIT.en of train, a validation and a test split, as people write or as fairseq's script prepares them.
inline void write_parallel(const std::filesystem::path& folder, bool prepared, const std::string& valid = "valid", const std::string& test = "test") {
  const std::string german = prepared ? "ein ha@@ us am see .\nzwei hunde laufen .\ndrei\nein hund\n"
                                      : "Ein Haus am See.\nZwei Hunde laufen.\nDrei\nEin Hund\n",
                    english =
                        prepared ? "a hou@@ se by the lake .\ntwo dogs run .\nthree\na dog\n" : "A house by the lake.\nTwo dogs run.\nThree\nA dog\n";
  for (const std::string& split : {std::string("train"), valid, test}) {
    write_text(folder / (split + ".de"), german);
    write_text(folder / (split + ".en"), english);
  }
}

}  // namespace tiny
