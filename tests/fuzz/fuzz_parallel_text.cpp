// Parallel text in two files, raw or gzipped, up to the batches of a translation model. Byte 1e parts the files.
#include <fstream>

#include "datasets/translation.h"
#include "fuzz/fuzz.h"
#include "temporary_folder.h"

namespace sinkgrad::fuzz {

std::vector<std::string> seeds() {
  return {
      "ein haus\nzwei h\xc3\xa4user\n\x1e"
      "a house\ntwo houses\n",
      "\xEF\xBB\xBF"
      "a@@ b c\r\n\n\xe2\x80\xa8 x\x1e"
      "d e@@\n\nf",
      "a\x1e"
      "b"};
}

void feed(std::string_view input) {
  static const TemporaryFolder folder;
  const std::vector<std::string> files = parts(input, 2);
  std::ofstream(folder / "train.de", std::ios::binary) << files[0];
  std::ofstream(folder / "train.en", std::ios::binary) << files[1];
  const ParallelText pairs = read_parallel(folder.path, "train", "de", "en");
  const auto text = std::make_shared<TranslationText>(Segmentation{.lower_case = true}, pairs, 100, 100);
  const TranslationText again(text->files(), folder.path);
  require(again.files() == text->files(), "what is stored must be read back");
  const TranslationSource source("input", text, pairs, 50);
  for (const std::string& sentence : pairs.target) text->target_text(text->target(sentence));
}

}  // namespace sinkgrad::fuzz
