// Counts are summed over the corpus before anything is divided. The rules of 13a work on bytes: they look at ASCII alone, and what they insert
// are spaces beside it, which never falls into the middle of a UTF-8 character.
#include "datasets/bleu.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "core/check.h"
#include "datasets/text_file.h"

namespace sinkgrad {
namespace {

using Words = std::vector<std::string>;
using Counts = std::map<Words, int64_t>;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_stop(char c) { return c == '.' || c == ','; }
/// ASCII punctuation that always stands alone: all but ' - . and ,
bool is_symbol(char c) {
  return (c >= '{' && c <= '~') || (c >= '[' && c <= '`') || (c >= ' ' && c <= '&') || (c >= '(' && c <= '+') || (c >= ':' && c <= '@') || c == '/';
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) text.replace(at, from.size(), to);
}

/// Splits at what Unicode calls white space.
Words split_white_space(std::string_view text) {
  static const std::vector<std::string> spaces = [] {
    std::vector<std::string> all = {
        " ",    "\t",       "\n",       "\v",           "\f",           "\r",           "\x1c",         "\x1d",         "\x1e",
        "\x1f", "\xc2\x85", "\xc2\xa0", "\xe1\x9a\x80", "\xe2\x80\xa8", "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};
    for (char last = '\x80'; last <= '\x8a'; ++last) all.push_back(std::string("\xe2\x80") + last);
    return all;
  }();
  Words words(1);
  while (!text.empty()) {
    const auto space = std::find_if(spaces.begin(), spaces.end(), [&](const std::string& s) { return text.starts_with(s); });
    if (space == spaces.end()) {
      words.back() += text.front();
      text.remove_prefix(1);
    } else {
      text.remove_prefix(space->size());
      if (!words.back().empty()) words.emplace_back();
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

Words words_of(const std::string& line, const BleuOptions& o) {
  const std::string text = o.lower_case ? lower_case(line) : line;
  return split_white_space(o.tokenize_13a ? tokenize_13a(text) : text);
}

Counts count_ngrams(const Words& words, size_t order) {
  Counts counts;
  for (size_t i = 0; i + order <= words.size(); ++i)
    ++counts[Words(words.begin() + static_cast<int64_t>(i), words.begin() + static_cast<int64_t>(i + order))];
  return counts;
}

void add_sentence(const Words& sentence, const std::vector<Words>& references, BleuScore& score) {
  const auto length = static_cast<int64_t>(sentence.size());
  int64_t closest = -1;
  for (const Words& reference : references) {
    const auto other = static_cast<int64_t>(reference.size());
    const int64_t distance = std::abs(other - length), best = std::abs(closest - length);
    if (closest < 0 || distance < best || (distance == best && other < closest)) closest = other;
  }
  score.length += length;
  score.reference_length += closest;
  for (size_t order = 1; order <= 4; ++order) {
    Counts most;  // of any one reference
    for (const Words& reference : references)
      for (const auto& [ngram, count] : count_ngrams(reference, order)) most[ngram] = std::max(most[ngram], count);
    for (const auto& [ngram, count] : count_ngrams(sentence, order)) {
      const auto found = most.find(ngram);
      if (found != most.end()) score.matches[order - 1] += std::min(count, found->second);
      score.ngrams[order - 1] += count;
    }
  }
}

void finish(BleuScore& score, bool smooth_exp) {
  double smoothing = 1, log_sum = 0;
  for (size_t k = 0; k < 4; ++k) {
    if (score.ngrams[k] == 0) break;
    double matches = static_cast<double>(score.matches[k]);
    if (score.matches[k] == 0 && smooth_exp) matches = 1 / (smoothing *= 2);
    score.precisions[k] = 100 * matches / static_cast<double>(score.ngrams[k]);
  }
  if (score.length < score.reference_length)
    score.brevity = score.length > 0 ? std::exp(1 - static_cast<double>(score.reference_length) / static_cast<double>(score.length)) : 0;
  const bool any = std::any_of(score.matches.begin(), score.matches.end(), [](int64_t m) { return m > 0; });
  const bool all = std::all_of(score.precisions.begin(), score.precisions.end(), [](double p) { return p > 0; });
  if (!any || !all) return;
  for (const double p : score.precisions) log_sum += std::log(p);
  score.bleu = score.brevity * std::exp(log_sum / 4);
}

}  // namespace

std::string tokenize_13a(std::string_view line) {
  std::string text(line);
  replace_all(text, "<skipped>", "");
  replace_all(text, "-\n", "");
  replace_all(text, "\n", " ");
  if (text.find('&') != std::string::npos)
    for (const auto& [entity, character] : {std::pair("&quot;", "\""), std::pair("&amp;", "&"), std::pair("&lt;", "<"), std::pair("&gt;", ">")})
      replace_all(text, entity, character);
  text = " " + text + " ";

  std::string apart;
  for (const char c : text) apart += is_symbol(c) ? std::string{' ', c, ' '} : std::string{c};
  // A stop behind what is no digit, then one before what is no digit, then a dash behind a digit; matches do not overlap.
  const auto rewrite = [](const std::string& in, auto matches, auto write) {
    std::string out;
    for (size_t i = 0; i < in.size();) {
      if (i + 1 < in.size() && matches(in[i], in[i + 1])) {
        out += write(in[i], in[i + 1]);
        i += 2;
      } else {
        out += in[i++];
      }
    }
    return out;
  };
  apart = rewrite(
      apart, [](char a, char b) { return !is_digit(a) && is_stop(b); },
      [](char a, char b) {
        return std::string{a, ' ', b, ' '};
      });
  apart = rewrite(
      apart, [](char a, char b) { return is_stop(a) && !is_digit(b); },
      [](char a, char b) {
        return std::string{' ', a, ' ', b};
      });
  apart = rewrite(
      apart, [](char a, char b) { return is_digit(a) && b == '-'; },
      [](char a, char b) {
        return std::string{a, ' ', b, ' '};
      });
  return join_words(split_white_space(apart));
}

BleuScore bleu(std::span<const std::string> sentences, std::span<const std::vector<std::string>> references, const BleuOptions& options) {
  require<InputError>(!sentences.empty() && !references.empty(), "bleu: needs at least one sentence and one reference, got ", sentences.size(),
                      " and ", references.size());
  for (const auto& reference : references)
    require<InputError>(reference.size() == sentences.size(), "bleu: translations and references must have the same number of lines, got ",
                        sentences.size(), " and ", reference.size());
  BleuScore score;
  score.signature = fmt::format("refs:{}|case:{}|eff:no|tok:{}|smooth:{}", references.size(), options.lower_case ? "lc" : "mixed",
                                options.tokenize_13a ? "13a" : "none", options.smooth_exp ? "exp" : "none");
  for (size_t i = 0; i < sentences.size(); ++i) {
    std::vector<Words> words;
    for (const auto& reference : references) {
      words.push_back(words_of(reference[i], options));
      if (!options.unknown_matches)
        for (std::string& word : words.back())
          if (word == "<unk>") word = "<<unk>>";
    }
    add_sentence(words_of(sentences[i], options), words, score);
  }
  finish(score, options.smooth_exp);
  return score;
}

std::string BleuScore::text() const {
  const double ratio = reference_length > 0 ? static_cast<double>(length) / static_cast<double>(reference_length) : 0;
  return fmt::format("BLEU = {:.2f}, {:.1f}/{:.1f}/{:.1f}/{:.1f} (BP={:.3f}, ratio={:.3f}, length={}, reference={}) {}", bleu, precisions[0],
                     precisions[1], precisions[2], precisions[3], brevity, ratio, length, reference_length, signature);
}

}  // namespace sinkgrad
