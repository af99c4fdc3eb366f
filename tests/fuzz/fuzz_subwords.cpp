// Models of subword units, as sentencepiece stores them, and texts cut by them.
#include "datasets/subwords.h"
#include "fuzz/fuzz.h"

namespace sinkgrad::fuzz {

std::vector<std::string> seeds() {
  const std::vector<std::string> texts = {"a house and a mouse", "the mouse is in the house", "ein Haus und eine Maus"};
  return {Subwords::train(texts, {.vocabulary = 40, .symbols = {}})};
}

void feed(std::string_view input) {
  const Subwords subwords(input, "input");
  subwords.encode("the house, \xe2\x91\xa0 \xef\xac\x81ne");
  Subwords::join(subwords.pieces("\xff\xc3 mouse\n"));
}

}  // namespace sinkgrad::fuzz
