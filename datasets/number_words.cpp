// Numbers in words, cut into their parts. German says units before tens ("drei und zwanzig") and writes a number as one word.
#include <array>

#include "core/check.h"
#include "datasets/translation.h"

namespace sinkgrad {
namespace {

using Parts = std::vector<std::string>;

constexpr std::array<const char*, 13> kGermanSmall = {"null",   "eins", "zwei", "drei", "vier", "fünf", "sechs",
                                                      "sieben", "acht", "neun", "zehn", "elf",  "zwölf"};
constexpr std::array<const char*, 10> kGermanTens = {"", "", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"};
constexpr std::array<const char*, 20> kEnglishSmall = {"zero",     "one",     "two",     "three",     "four",     "five",    "six",
                                                       "seven",    "eight",   "nine",    "ten",       "eleven",   "twelve",  "thirteen",
                                                       "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"};
constexpr std::array<const char*, 10> kEnglishTens = {"", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"};

template <size_t N>
std::string at(const std::array<const char*, N>& words, int64_t i) {
  return words[static_cast<size_t>(i)];
}

void german_below_thousand(int64_t n, bool last, Parts& out) {
  const auto unit = [](int64_t i) { return i == 1 ? "ein" : at(kGermanSmall, i); };
  if (n >= 100) out.insert(out.end(), {unit(n / 100), "hundert"});
  n %= 100;
  if (n == 0) return;
  if (n <= 12) {
    out.push_back(n == 1 && !last ? "ein" : at(kGermanSmall, n));
  } else if (n < 20) {
    const std::string stem = n == 16 ? "sech" : n == 17 ? "sieb" : at(kGermanSmall, n - 10);
    out.insert(out.end(), {stem, "zehn"});
  } else {
    if (n % 10 > 0) out.insert(out.end(), {unit(n % 10), "und"});
    out.push_back(at(kGermanTens, n / 10));
  }
}

/// Words of one number of German belong together; in English only tens and units do.
void english_below_thousand(int64_t n, Parts& out) {
  if (n >= 100) out.insert(out.end(), {at(kEnglishSmall, n / 100), "hundred"});
  n %= 100;
  if (n == 0) return;
  if (n < 20) {
    out.push_back(at(kEnglishSmall, n));
  } else {
    out.push_back(at(kEnglishTens, n / 10) + (n % 10 > 0 ? "@@" : ""));
    if (n % 10 > 0) out.insert(out.end(), {"-@@", at(kEnglishSmall, n % 10)});
  }
}

std::string join(const Parts& parts, const char* between) {
  std::string line;
  for (const std::string& part : parts) line += (line.empty() ? "" : between) + part;
  return line;
}

void require_range(int64_t number) { require(number >= 0 && number < 1'000'000, "number words: numbers lie in 0..999999, got ", number); }

}  // namespace

std::string german_number(int64_t number) {
  require_range(number);
  if (number == 0) return at(kGermanSmall, 0);
  Parts parts;
  if (number >= 1000) {
    german_below_thousand(number / 1000, false, parts);
    parts.emplace_back("tausend");
  }
  german_below_thousand(number % 1000, true, parts);
  return join(parts, "@@ ");
}

std::string english_number(int64_t number) {
  require_range(number);
  if (number == 0) return at(kEnglishSmall, 0);
  Parts parts;
  if (number >= 1000) {
    english_below_thousand(number / 1000, parts);
    parts.emplace_back("thousand");
  }
  english_below_thousand(number % 1000, parts);
  return join(parts, " ");
}

}  // namespace sinkgrad
