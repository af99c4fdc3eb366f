// BLEU against values worked out by hand, and mteval's tokenizer.
#include <catch2/catch.hpp>
#include <cmath>

#include "core/check.h"
#include "datasets/bleu.h"

using namespace sinkgrad;
using Strings = std::vector<std::string>;

namespace {

BleuScore score(const Strings& sentences, const std::vector<Strings>& references, const BleuOptions& options = BleuOptions::tokenised(true)) {
  return bleu(sentences, references, options);
}

}  // namespace

TEST_CASE("a perfect translation scores 100") {
  const BleuScore s = score({"the cat sat on the mat", "a dog ran off"}, {{"the cat sat on the mat", "A dog ran off"}});
  CHECK(s.bleu == Approx(100));
  CHECK(s.brevity == 1);
  CHECK(s.length == 10);
  CHECK(s.matches == std::array<int64_t, 4>{10, 8, 6, 4});
}

TEST_CASE("fault 70: brevity is counted over the corpus, ties of reference lengths go to the shorter, nothing exceeds 100") {
  const BleuScore brief = score({"a b c d e"}, {{"a b c d e f g"}});
  CHECK(brief.brevity == Approx(0.670).margin(5e-4));
  CHECK(brief.bleu == Approx(100 * std::exp(1 - 7.0 / 5)));
  const BleuScore two = score({"a b c d e", "a b c d e f g h i"}, {{"a b c d e f g", "a b c d e f g"}});
  CHECK(two.reference_length == 14);
  CHECK(two.brevity == 1);  // 14 and 14
  const BleuScore tie = score({"1 2 3 4 5 6 7 8 9 10 11 12"}, {{"1 2 3 4 5 6 7 8 9 10"}, {"1 2 3 4 5 6 7 8 9 10 11 12 13 14"}});
  CHECK(tie.reference_length == 10);
  CHECK(tie.bleu == Approx(100));
  CHECK(score({"1 2 3 4 5 6 7 8 9 10 11 12 13"}, {{"1 2 3 4 5 6 7 8 9 10"}, {"1 2 3 4 5 6 7 8 9 10 11 12 13 14"}}).reference_length == 14);
}

TEST_CASE("matches are clipped by the reference that has most") {
  const BleuScore s = score({"the the the the the the the"}, {{"the cat is on the mat"}, {"there is a cat on the mat"}});
  CHECK(s.matches == std::array<int64_t, 4>{2, 0, 0, 0});
  CHECK(s.ngrams == std::array<int64_t, 4>{7, 6, 5, 4});
  CHECK(s.bleu == 0);
  // By hand: 4 of 5 words, 2 of 4 pairs, 1 of 3, 0 of 2 -> with exponential smoothing 1/2 of a match.
  const BleuScore smooth = score({"a b c x d"}, {{"a b c d e"}}, {.smooth_exp = true});
  CHECK(smooth.matches == std::array<int64_t, 4>{4, 2, 1, 0});
  CHECK(smooth.bleu == Approx(100 * std::pow(4.0 / 5 * 2 / 4 * 1 / 3 * 0.5 / 2, 0.25)));
  CHECK(score({"a b c x d"}, {{"a b c d e"}}).bleu == 0);
  // The second order without a match counts as a quarter of one.
  const BleuScore twice = score({"a b x c d"}, {{"a b c d e"}}, {.smooth_exp = true});
  CHECK(twice.bleu == Approx(100 * std::pow(4.0 / 5 * 2 / 4 * 0.5 / 3 * 0.25 / 2, 0.25)));
}

TEST_CASE("no match, empty lines and mistakes") {
  CHECK(score({"x y z w"}, {{"a b c d"}}).bleu == 0);
  CHECK(score({"x y z w"}, {{"a b c d"}}, BleuOptions::sacre(true)).bleu == 0);
  const BleuScore gap = score({"", "a b c d e"}, {{"a b", "a b c d e"}});
  CHECK(gap.bleu == Approx(100 * std::exp(1 - 7.0 / 5)));
  CHECK(score({""}, {{"a"}}).bleu == 0);
  CHECK(score({""}, {{""}}).bleu == 0);
  CHECK(score({"a b"}, {{"a b"}}).bleu == 0);  // no 4-gram at all
  CHECK_THROWS_WITH(score({"a", "b"}, {{"a"}}), Catch::Contains("got 2 and 1"));
  CHECK_THROWS_AS(score({}, {}), InputError);
}

TEST_CASE("fault 72: the score says what it is, and an unknown word of the reference never matches") {
  const BleuScore paper = score({"a <unk> c d e"}, {{"a <unk> c d e"}}), plain = score({"a <unk> c d e"}, {{"a <unk> c d e"}}, {});
  CHECK(paper.matches[0] == 4);
  CHECK(plain.bleu == Approx(100));
  CHECK(paper.signature == "refs:1|case:lc|eff:no|tok:none|smooth:none");
  const BleuScore sacre = score({"A b, c d."}, {{"a b, c d."}}, BleuOptions::sacre(false));
  CHECK(sacre.signature == "refs:1|case:mixed|eff:no|tok:13a|smooth:exp");
  CHECK(sacre.matches == std::array<int64_t, 4>{5, 4, 3, 2});
  CHECK(score({"A b, c d."}, {{"a b, c d."}}, BleuOptions::sacre(true)).bleu == Approx(100));
  CHECK(score({"a b , c d ."}, {{"a b, c d."}}, BleuOptions::sacre(true)).bleu == Approx(100));
  CHECK_THAT(sacre.text(), Catch::Contains("83.3/80.0/75.0/66.7 (BP=1.000, ratio=1.000, length=6, reference=6)"));
}

TEST_CASE("mteval-v13a's tokens") {
  CHECK(tokenize_13a("Hello, world!") == "Hello , world !");
  CHECK(tokenize_13a("It costs $1,000.50 (now).") == "It costs $ 1,000.50 ( now ) .");
  CHECK(tokenize_13a("a 3-4 well-known don't") == "a 3 - 4 well-known don't");
  CHECK(tokenize_13a("&quot;a&quot; &amp; b&lt;c&gt;") == "\" a \" & b < c >");
  CHECK(tokenize_13a("etc.,") == "etc . ,");
  CHECK(tokenize_13a("gr\xc3\xbc\xc3\x9f.dich, \xe2\x80\x9eja\xe2\x80\x9c") == "gr\xc3\xbc\xc3\x9f . dich , \xe2\x80\x9eja\xe2\x80\x9c");
  CHECK(tokenize_13a("a\xc2\xa0"
                     "b  c\t") == "a b c");
  CHECK(tokenize_13a("1. 2.5 .5 5.") == "1 . 2.5 . 5 5 .");
  CHECK(tokenize_13a("") == "");
  CHECK(tokenize_13a("<skipped> x/y_z") == "x / y _ z");
}
