// The wanted opinion is drawn first and words are chosen to say it: a single word is a weak hint, what turns it around decides.
#include "datasets/opinions.h"

#include <array>
#include <map>

#include "datasets/text_classification.h"
#include "datasets/text_file.h"

namespace sinkgrad {
namespace {

template <size_t N>
using Words = std::array<const char*, N>;

constexpr Words<16> kSubjects = {"the film",     "the plot",    "the acting",     "the music",     "the ending", "the story",
                                 "the cast",     "the script",  "the pacing",     "the humour",    "the camera", "the hero",
                                 "the dialogue", "the villain", "the first half", "the last scene"};
constexpr Words<14> kGood = {"good",     "great",  "wonderful", "moving",    "brilliant", "charming", "clever",
                             "gripping", "superb", "funny",     "memorable", "fresh",     "elegant",  "convincing"};
constexpr Words<14> kBad = {"bad",  "awful",   "dull",    "boring",      "terrible", "clumsy", "stupid",
                            "weak", "tedious", "shallow", "forgettable", "stale",    "noisy",  "hollow"};
constexpr Words<6> kDegrees = {"", "really", "truly", "quite", "rather", "so"};
constexpr Words<5> kNegations = {"not", "never", "hardly", "not at all", "by no means"};
constexpr Words<3> kDoubts = {"nobody would call", "i would not call", "no one can call"};
constexpr Words<10> kAsides = {"we saw it on a sunday .",    "it runs for two hours .",       "my sister came along .",
                               "the cinema was half full .", "it was shot in two cities .",   "the book came out long before .",
                               "there is a cat in it .",     "the director is from norway .", "we sat in the third row .",
                               "a friend lent me the disc ."};

class Writer {
 public:
  Writer(uint64_t seed, std::string_view split, uint64_t index) : random_(seed, cat("opinions/", split), index) {}

  Opinion opinion() {
    const bool positive = chance(0.5);
    std::string text;
    add_asides(text);
    text += judgement(positive);
    add_asides(text);
    return {text.substr(0, text.size() - 1), positive};
  }

 private:
  bool chance(double p) { return random_.uniform() < p; }
  template <size_t N>
  std::string pick(const Words<N>& words) {
    return words[random_.below(N)];
  }
  std::string adjective(bool good) {
    const std::string degree = pick(kDegrees), word = good ? pick(kGood) : pick(kBad);
    return degree.empty() ? word : degree + " " + word;
  }
  void add_asides(std::string& text) {
    while (chance(0.4)) text += pick(kAsides) + " ";
  }

  /// One statement, three in ten through a negation.
  std::string clause(bool good) {
    const std::string subject = pick(kSubjects);
    if (chance(0.7)) return subject + " was " + adjective(good);
    if (chance(0.3)) return pick(kDoubts) + " " + subject + " " + (good ? pick(kBad) : pick(kGood));
    return subject + " was " + pick(kNegations) + " " + (good ? pick(kBad) : pick(kGood));
  }

  /// What counts is said after `but`, and outside of `although`.
  std::string judgement(bool good) {
    switch (random_.below(6)) {
      case 0: return clause(!good) + " , but " + clause(good) + " . ";
      case 1: return "although " + clause(!good) + " , " + clause(good) + " . ";
      case 2: return clause(good) + " , although " + clause(!good) + " . ";
      case 3: return clause(good) + " and " + clause(good) + " . ";
      default: return clause(good) + " . ";
    }
  }

  RandomStream random_;
};

/// Every word of the grammar, numbered from 2 in alphabetical order; 0 is padding and 1 would be an unknown word.
const std::map<std::string, int32_t, std::less<>>& vocabulary() {
  static const auto words = [] {
    std::map<std::string, int32_t, std::less<>> all;
    const auto collect = [&](const auto& list) {
      for (const char* text : list)
        for (const std::string_view word : split_words(text)) all.emplace(word, 0);
    };
    collect(kSubjects), collect(kGood), collect(kBad), collect(kDegrees), collect(kNegations), collect(kDoubts), collect(kAsides);
    collect(Words<5>{"was", "but", "although", "and", ", ."});
    int32_t next = 2;
    for (auto& [word, number] : all) number = next++;
    return all;
  }();
  return words;
}

}  // namespace

Opinion make_opinion(uint64_t seed, std::string_view split, uint64_t index) { return Writer(seed, split, index).opinion(); }

DataSplits make_opinions(const nlohmann::json& options) {
  const auto part = [&](const char* split) {
    TokenRows rows;
    std::vector<int32_t> labels;
    for (uint64_t i = 0; i < options[split].get<uint64_t>(); ++i) {
      const Opinion opinion = make_opinion(options["seed"], split, i);
      std::vector<int32_t> tokens;
      for (const std::string_view word : split_words(opinion.text)) tokens.push_back(vocabulary().find(word)->second);
      rows.push_back(tokens);
      labels.push_back(opinion.positive);
    }
    return std::make_unique<TextClassification>(TextClassification::Options{.name = "opinions",
                                                                            .split = split,
                                                                            .class_names = {"negative", "positive"},
                                                                            .vocabulary = static_cast<int64_t>(vocabulary().size()) + 2,
                                                                            .max_length = 128},
                                                std::move(rows), std::move(labels));
  };
  return {part("train"), part("test")};
}

}  // namespace sinkgrad
