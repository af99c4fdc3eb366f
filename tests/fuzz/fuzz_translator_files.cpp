// What lies beside a translator's checkpoint: two dictionaries, segmentation.json and perhaps a sentencepiece model, parted by bytes 1e.
#include "datasets/translation_text.h"
#include "fuzz/fuzz.h"

namespace sinkgrad::fuzz {

std::vector<std::string> seeds() {
  return {"haus 2\nein 1\nmadeupword0000 0\n\x1ehouse 2\na 1\n\x1e{\"lower_case\": true, \"subwords\": false}\n\x1e",
          "a@@ 3\nb 2\n\x1e"
          "c 1\n\x1e{\"lower_case\": false, \"subwords\": true}\x1emodel"};
}

void feed(std::string_view input) {
  const std::vector<std::string> files = parts(input, 4);
  std::map<std::string, std::string> named;
  for (size_t k = 0; k < files.size(); ++k) named[TranslationText::file_names()[k]] = files[k];
  const TranslationText text(named, "folder");
  text.target_text(text.target("Ein Haus a@@ b"));
  text.source(files[0]);
}

}  // namespace sinkgrad::fuzz
