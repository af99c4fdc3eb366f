// Translation: dictionaries, parallel text, batches by words, the model, beam search against exhaustive search, and BLEU by hand.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>

#include "core/file.h"
#include "datasets/translation.h"
#include "models/registry.h"
#include "models/translator.h"
#include "module_check.h"
#include "nn/trainer.h"
#include "temporary_folder.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;
using nlohmann::json;
namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

namespace {

/// A translator that is trained a little less than not at all: its scores are far from uniform.
TranslatorOptions tiny(int iterations = 3) {
  return {.source_words = 9,
          .target_words = 6,
          .max_length = 12,
          .dim = 8,
          .mlp_dim = 12,
          .encoder_layers = 2,
          .decoder_layers = 2,
          .heads = 2,
          .sinkhorn = {.iterations = iterations}};
}

Tensor source_planes(const std::vector<std::vector<int32_t>>& sentences, int64_t longest = 0) {
  for (const auto& s : sentences) longest = std::max(longest, static_cast<int64_t>(s.size()));
  const Tensor planes({3, static_cast<int64_t>(sentences.size()), longest}, DType::i32);
  write_tokens(planes, TranslationSource::kLayout, [&](int64_t i) { return std::span(sentences[static_cast<size_t>(i)]); });
  return planes;
}

/// Log probabilities of all next words from the whole model, without any cache: (T, words) for a target that begins with the end of a sentence.
std::vector<double> whole_model(Translator& model, const Tensor& source, const std::vector<int32_t>& target) {
  Tape tape;
  tape.set_training(false);
  const Tensor planes = source_planes({target});
  return to_doubles(tape.value(log_softmax(model.scores(tape.leaf(source), tape.leaf(planes)))));
}

/// Every sentence up to `longest` words, best score first.
std::vector<Hypothesis> exhaustive(Translator& model, const Tensor& source, int64_t longest, double penalty) {
  const int64_t words = model.options().target_words;
  std::vector<Hypothesis> found;
  std::vector<std::pair<std::vector<int32_t>, double>> open = {{{}, 0.0}};
  for (int64_t length = 0; length <= longest; ++length) {
    std::vector<std::pair<std::vector<int32_t>, double>> next;
    for (const auto& [prefix, score] : open) {
      std::vector<int32_t> target = {Dictionary::kEnd};
      target.insert(target.end(), prefix.begin(), prefix.end());
      const std::vector<double> all = whole_model(model, source, target);
      const double* last = &all[prefix.size() * static_cast<size_t>(words)];
      if (length > 0) found.push_back({prefix, (score + last[Dictionary::kEnd]) / std::pow(static_cast<double>(length + 1), penalty)});
      if (length == longest) continue;
      for (int32_t w = 0; w < words; ++w) {
        if (w == Dictionary::kEnd || w == Dictionary::kPadding) continue;
        next.emplace_back(prefix, score + last[w]);
        next.back().first.push_back(w);
      }
    }
    open = std::move(next);
  }
  std::sort(found.begin(), found.end(), [](const Hypothesis& a, const Hypothesis& b) { return a.score > b.score; });
  return found;
}

}  // namespace

TEST_CASE("dictionaries: special words, frequency, ties by spelling, a multiple of 8") {
  const std::vector<Strings> lines = {{"b", "a", "c", "b"}, {"\xc3\xa4", "c", "b", "<unk>"}};
  const Dictionary d = Dictionary::count(lines);
  CHECK(d.words() == Strings{"<s>", "<pad>", "</s>", "<unk>", "b", "c", "a", "\xc3\xa4"});
  CHECK(d["c"] == 5);
  CHECK(d["zebra"] == Dictionary::kUnknown);
  CHECK(d.text() == "b 3\nc 2\na 1\n\xc3\xa4 1\n");
  const Dictionary read = Dictionary::parse(d.text(), "dict.txt");
  CHECK(read.words() == d.words());
  CHECK(read.text() == d.text());
  const Dictionary limited = Dictionary::count(lines, 6);
  CHECK(limited.words() == Strings{"<s>", "<pad>", "</s>", "<unk>", "b", "c", "madeupword0000", "madeupword0001"});
  CHECK(Dictionary::parse(limited.text(), "dict.txt").words() == limited.words());
  for (const char* bad : {"a 1\nb\n", "a 1\nb x\n", "a 1\nb 2x\n", "a 1\na 2\n", "a 1\n 2\n", "a 1\nb -2\n"})
    CHECK_THROWS_WITH(Dictionary::parse(bad, "dict.txt"), Contains("dict.txt: line 2: "));
}

TEST_CASE("fault 69: parts of words are joined and nothing else") {
  CHECK(join_parts("lo@@ wer ca@@ se") == "lower case");
  CHECK(join_parts("ends with@@") == "ends with");
  CHECK(join_parts("a @@ b @@c") == "a b @@c");
  CHECK(join_parts("") == "");
}

TEST_CASE("parallel text: plain and gzip, and mistakes by file and line") {
  const TemporaryFolder folder;
  write_file(folder.path / "train.de", "ein haus\nzwei h\xc3\xa4user\n");
  write_file(folder.path / "train.en", "a house\ntwo houses");
  REQUIRE(std::system(cat("gzip -k ", (folder.path / "train.en").string()).c_str()) == 0);
  fs::remove(folder.path / "train.en");
  const ParallelText pairs = read_parallel(folder.path, "train", "de", "en");
  CHECK(pairs.source == Strings{"ein haus", "zwei h\xc3\xa4user"});
  CHECK(pairs.target == Strings{"a house", "two houses"});
  CHECK_THROWS_AS(read_parallel(folder.path, "valid", "de", "en"), IoError);
  write_file(folder.path / "short.de", "eins\nzwei\n");
  write_file(folder.path / "short.en", "one\n");
  CHECK_THROWS_WITH(read_parallel(folder.path, "short", "de", "en"), Contains("short.de") && Contains("short.en") && Contains("got 2 and 1"));
  write_file(folder.path / "short.en", "one\n\xff\n");
  CHECK_THROWS_WITH(read_parallel(folder.path, "short", "de", "en"), Contains("short.en: line 2: must be UTF-8"));
}

TEST_CASE("prepared text and subwords: to numbers and back, also from the files beside a model") {
  const ParallelText training{{"ein ha@@ us", "zwei h@@ user", "drei"}, {"a hou@@ se", "two hou@@ ses", "three"}};
  const TranslationText prepared(Segmentation{}, training);
  CHECK(prepared.source_words().size() == 16);
  const std::vector<int32_t> house = prepared.target("a hou@@ se");
  CHECK(house.size() == 4);
  CHECK(house.back() == Dictionary::kEnd);
  CHECK(prepared.target_text(std::span(house).first(3)) == "a house");
  CHECK(prepared.source("unseen")[0] == Dictionary::kUnknown);
  CHECK(prepared.source("") == std::vector<int32_t>{Dictionary::kEnd});
  const TranslationText same(prepared.files(), "run");
  CHECK(same.target("two hou@@ ses") == prepared.target("two hou@@ ses"));
  CHECK(same.prepared());

  Strings raw = {"Ein Haus am See.", "Zwei Hunde laufen.", "A house by the lake.", "Two dogs run."}, lower;
  for (const std::string& line : raw) lower.push_back(line);
  for (std::string& line : lower)
    for (char& c : line) c = static_cast<char>(std::tolower(c));
  const Segmentation segmentation{.model = Subwords::train(lower, {.vocabulary = 60, .symbols = {}}), .lower_case = true};
  const TranslationText cut(segmentation, {{raw[0], raw[1]}, {raw[2], raw[3]}});
  std::vector<int32_t> lake = cut.target(raw[2]);
  lake.pop_back();
  CHECK(cut.target_text(lake) == lower[2]);
  const TranslationText again(cut.files(), "run");
  CHECK(again.source(raw[0]) == cut.source(raw[0]));
  CHECK(!again.prepared());
  std::map<std::string, std::string> files = cut.files();
  files.erase("subwords.model");
  CHECK_THROWS_WITH(TranslationText(files, "run"), Contains("run/subwords.model: is missing"));
  files = prepared.files();
  files["segmentation.json"] = "{";
  CHECK_THROWS_WITH(TranslationText(files, "run"), Contains("run/segmentation.json: must be {") && !Contains("json.exception"));
  files = prepared.files();
  files["dictionary.source.txt"] += "\xff 3\n";
  CHECK_THROWS_WITH(TranslationText(files, "run"), Contains("run/dictionary.source.txt: line ") && Contains("must be UTF-8"));
  files = cut.files();
  files["subwords.model"] = "nonsense";
  CHECK_THROWS_WITH(TranslationText(files, "run"), "run/subwords.model: is no sentencepiece model");
  files = prepared.files();
  files.erase("dictionary.target.txt");
  CHECK_THROWS_WITH(TranslationText(files, "run"), Contains("run/dictionary.target.txt: is missing"));
}

TEST_CASE("batches by words: the budget, multiples of 8, every pair once, fixed batches in a new order") {
  std::vector<int64_t> source, target;
  RandomStream random(1, "lengths");
  for (int i = 0; i < 997; ++i) {
    source.push_back(2 + static_cast<int64_t>(random.below(30)));
    target.push_back(2 + static_cast<int64_t>(random.below(30)));
  }
  WordBudget plan(source, target, 500, Purpose::training, 1), evaluation(source, target, 500, Purpose::evaluation, 1);
  std::vector<std::set<std::vector<uint32_t>>> epochs;
  std::vector<std::vector<uint32_t>> first;
  for (uint64_t epoch = 0; epoch < 2; ++epoch) {
    std::vector<uint32_t> seen;
    std::set<std::vector<uint32_t>> batches;
    int odd = 0;
    for (int64_t k = 0; k < plan.batches(); ++k) {
      const auto batch = plan.indices(epoch, k);
      int64_t longest = 0;
      for (const uint32_t i : batch) longest = std::max({longest, source[i], target[i]});
      CHECK(longest * static_cast<int64_t>(batch.size()) <= 500);
      odd += batch.size() % 8 != 0 && batch.size() > 8;
      seen.insert(seen.end(), batch.begin(), batch.end());
      if (k == 0) first.emplace_back(batch.begin(), batch.end());
      batches.emplace(batch.begin(), batch.end());
    }
    CHECK(odd <= 1);  // what is left at the end
    std::sort(seen.begin(), seen.end());
    CHECK(seen.size() == 997);
    CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
    epochs.push_back(batches);
  }
  CHECK(epochs[0] == epochs[1]);
  CHECK(first[0] != first[1]);
  CHECK(source[evaluation.indices(0, 0)[0]] == 2);
  CHECK(source[evaluation.indices(0, evaluation.batches() - 1).back()] == 31);
  // Lengths 1 .. : by hand, the budget 24 holds 8 pairs of 3, and of twelve pairs of 2 it cuts the multiple of 8.
  const std::vector<int64_t> twos(13, 2);
  WordBudget by_hand(twos, twos, 24, Purpose::evaluation, 0);
  CHECK(by_hand.batches() == 2);
  CHECK(by_hand.indices(0, 0).size() == 8);
  CHECK(by_hand.indices(0, 1).size() == 5);
  const std::vector<int64_t> fives(7, 5);
  WordBudget small(fives, fives, 16, Purpose::evaluation, 0);
  CHECK(small.batches() == 3);
  CHECK(small.indices(0, 2).size() == 1);
  // A long target among short sources: fifteen pairs of 3 fill 45 words, with one of 12 behind them no cut may leave more than three beside it.
  std::vector<int64_t> threes(16, 3), jump = threes;
  jump.back() = 12;
  WordBudget narrow(threes, jump, 45, Purpose::evaluation, 0);
  for (int64_t k = 0; k < narrow.batches(); ++k) {
    const auto batch = narrow.indices(0, k);
    const bool has_long = std::find(batch.begin(), batch.end(), 15u) != batch.end();
    CHECK(batch.size() <= (has_long ? 3 : 15));
  }
  CHECK_THROWS_WITH(WordBudget(fives, fives, 4, Purpose::evaluation, 0), Contains("at least the longest sentence, 5 words, got 4"));
}

TEST_CASE("a batch of translations: what the decoder reads is shifted, padding counts nowhere") {
  const ParallelText pairs{{"a b c", "a", ""}, {"x", "x y", "z"}};
  const auto text = std::make_shared<TranslationText>(Segmentation{}, pairs);
  const TranslationSource source("toy", text, pairs, 10);
  CHECK(source.size() == 2);
  CHECK_THAT(source.description(), Contains("1 with an empty side left out"));
  CHECK(source.item_shape() == Shape{10, 8});
  BatchMemory memory;
  const Batch batch = source.batch(std::vector<uint32_t>{0, 1}, std::nullopt, memory);
  const int32_t a = text->source_words()["a"], b = text->source_words()["b"], c = text->source_words()["c"], x = text->target_words()["x"],
                y = text->target_words()["y"];
  const auto values = [](const Tensor& t) { return std::vector<int32_t>(t.span<int32_t>().begin(), t.span<int32_t>().end()); };
  CHECK(values(batch.inputs) == std::vector<int32_t>{a, b, c, 2, a, 2, 1, 1, 2, 3, 4, 5, 2, 3, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1});
  CHECK(values(batch.context) == std::vector<int32_t>{2, x, 1, 2, x, y, 2, 3, 1, 2, 3, 4, 0, 0, 1, 0, 0, 0});
  CHECK(values(batch.labels) == std::vector<int32_t>{x, 2, kNoLabel, x, y, 2});
  CHECK(batch.size() == 5);
  CHECK_THROWS_AS(TranslationSource("toy", text, {{""}, {"x"}}, 10), InputError);
  CHECK_THROWS_WITH(TranslationSource("toy", text, pairs, 1), Contains("2 of more than 1 words"));
}

TEST_CASE("the translator has fairseq's parameters") {
  CHECK(Translator({.source_words = 8848, .target_words = 6632}).parameter_count() == 39'469'056);
  CHECK(make_model({{"name", "translator"}}, {1024, 8848}, 6632)->parameter_count() == 39'469'056);
  Translator model(tiny());
  for (const char* name : {"encoder.embed_tokens.weight", "encoder.layers.1.self_attn.q_proj.bias", "encoder.layers.0.final_layer_norm.weight",
                           "decoder.embed_tokens.weight", "decoder.layers.0.encoder_attn.out_proj.weight", "decoder.layers.1.fc2.bias"})
    CHECK_NOTHROW(model.find_parameter(name));
  REQUIRE(model.attentions().size() == 2);
  CHECK(model.attentions()[0]->sinkhorn.iterations == 3);
  const ParameterPack pack(model, DType::f32, 1);
  for (const char* name : {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}) {
    const std::vector<double> table = to_doubles(model.find_parameter(name).value);
    for (size_t i = 0; i < table.size(); ++i) CHECK((table[i] == 0) == (i / 8 == Dictionary::kPadding));
  }
}

TEST_CASE("translator: padding changes nothing, no word sees a later one, Sinkhorn is in the encoder") {
  Translator model(tiny()), softmax(tiny(1));
  const ParameterPack pack(model, DType::f32, 1), softmax_pack(softmax, DType::f32, 1);
  const std::vector<int32_t> source = {5, 8, 4, 2};
  const std::vector<double> plain = whole_model(model, source_planes({source}), {2, 3, 4, 5});
  const std::vector<double> padded = whole_model(model, source_planes({source}, 9), {2, 3, 4, 5});
  for (size_t i = 0; i < plain.size(); ++i) CHECK(padded[i] == Approx(plain[i]).margin(1e-5));
  const std::vector<double> other = whole_model(model, source_planes({source}), {2, 3, 5, 3});
  for (size_t i = 0; i < 12; ++i) CHECK(other[i] == plain[i]);
  CHECK(std::abs(other[13] - plain[13]) > 1e-4);
  CHECK(whole_model(softmax, source_planes({source}), {2, 3, 4, 5}) != plain);
  CHECK_THROWS_AS(whole_model(model, source_planes({{5, 8, 9, 2}}), {2}), Error);  // a word beyond the dictionary
}

TEST_CASE("backward of the translator is the derivative of its forward") {
  for (const int iterations : {1, 3}) {
    TranslatorOptions options = tiny(iterations);
    options.dropout = 0;
    options.dtype = DType::f64;
    Translator model(options);
    const Tensor source = source_planes({{5, 8, 4, 2}, {6, 2}}), target = source_planes({{2, 3}, {2, 4, 5}});
    CHECK(gradient_error(model, [&](Tape& tape) { return model.scores(tape.leaf(source), tape.leaf(target)); }) < 1e-6);
  }
}

TEST_CASE("beam search with kept keys and values equals an exhaustive search of the whole model") {
  for (const int iterations : {1, 3})
    for (const double penalty : {0.0, 1.0, 2.0}) {
      CAPTURE(iterations, penalty);
      Translator model(tiny(iterations));
      const ParameterPack pack(model, DType::f32, 3);
      const std::vector<std::vector<int32_t>> sentences = {{5, 8, 4, 2}, {6, 2}};
      const std::vector<int64_t> longest = {3, 2};
      constexpr int64_t kBeam = 100;  // more than there are sentences of up to three of four words
      TranslatorSearch search(model, source_planes(sentences), kBeam, Device::cpu());
      const auto found = beam_search(search, longest, {.beam = kBeam, .length_penalty = penalty, .vocabulary = 6});
      REQUIRE(found.size() == 2);
      for (size_t i = 0; i < 2; ++i) {
        const std::vector<Hypothesis> all = exhaustive(model, source_planes({sentences[i]}), longest[i], penalty);
        REQUIRE(found[i].size() == all.size());
        for (size_t k = 0; k < all.size(); ++k) CHECK(found[i][k].score == Approx(all[k].score).margin(1e-5));
        CHECK(found[i][0].words == all[0].words);
      }
    }
}

TEST_CASE("a beam of one is greedy, and follows fairseq's rules about ends") {
  /// Next words by the length of the sentence alone.
  struct Fixed : NextWords {
    std::vector<std::vector<double>> probabilities;
    size_t step = 0;
    std::vector<double> advance(std::span<const int32_t> parents, std::span<const int32_t>) override {
      std::vector<double> all;
      for (size_t row = 0; row < parents.size(); ++row)
        for (const double p : probabilities[std::min(step, probabilities.size() - 1)]) all.push_back(std::log(p));
      ++step;
      return all;
    }
  };
  const std::vector<int64_t> longest = {4};
  Fixed model;
  model.probabilities = {{0.05, 0.6, 0.3, 0.02, 0.03}, {0.1, 0.5, 0.05, 0.15, 0.2}, {0.1, 0.3, 0.5, 0.05, 0.05}};
  // Padding (1) never, no end before the first word: 0, then 4, then the end.
  const auto greedy = beam_search(model, longest, {.beam = 1, .vocabulary = 5});
  REQUIRE(greedy[0].size() == 1);
  CHECK(greedy[0][0].words == std::vector<int32_t>{0, 4});
  CHECK(greedy[0][0].score == Approx((std::log(0.05) + std::log(0.2) + std::log(0.5)) / 3));
  // The longest sentence must end, however unlikely.
  model.step = 0;
  model.probabilities = {{0.5, 0.1, 1e-9, 0.3, 0.1}};
  const auto cut = beam_search(model, longest, {.beam = 2, .length_penalty = 0, .vocabulary = 5});
  REQUIRE(cut[0].size() == 2);
  CHECK(cut[0][0].words == std::vector<int32_t>{0, 0, 0, 0});
  CHECK(cut[0][0].score == Approx(4 * std::log(0.5) + std::log(1e-9)));
  CHECK_THROWS_AS(beam_search(model, longest, {.beam = 0, .vocabulary = 5}), InputError);
  const std::vector<int64_t> none = {0};
  CHECK_THROWS_AS(beam_search(model, none, {.beam = 1, .vocabulary = 5}), InputError);
  model.probabilities = {{0.5, 0.1, 0.1, std::nan(""), 0.1}};
  CHECK_THROWS_WITH(beam_search(model, longest, {.beam = 1, .vocabulary = 5}), Contains("not a number"));
}

TEST_CASE("number words") {
  CHECK(german_number(0) == "null");
  CHECK(join_parts(german_number(1)) == "eins");
  CHECK(german_number(23) == "drei@@ und@@ zwanzig");
  CHECK(join_parts(german_number(117)) == "einhundertsiebzehn");
  CHECK(join_parts(german_number(101'001)) == "einhunderteintausendeins");
  CHECK(join_parts(german_number(999'916)) == "neunhundertneunundneunzigtausendneunhundertsechzehn");
  CHECK(join_parts(german_number(31'212)) == "einunddreißigtausendzweihundertzwölf");
  CHECK(join_parts(english_number(0)) == "zero");
  CHECK(english_number(23) == "twenty@@ -@@ three");
  CHECK(join_parts(english_number(999'916)) == "nine hundred ninety-nine thousand nine hundred sixteen");
  CHECK(join_parts(english_number(101'001)) == "one hundred one thousand one");
  CHECK(join_parts(english_number(40)) == "forty");
  CHECK_THROWS_AS(german_number(1'000'000), Error);
  std::set<std::string> german, english;
  for (int64_t n = 0; n < 3000; ++n) german.insert(join_parts(german_number(n))), english.insert(join_parts(english_number(n)));
  CHECK(german.size() == 3000);
  CHECK(english.size() == 3000);
}

TEST_CASE("the paper's recipe makes two steps on a tiny tree, and training resumes to the bit") {
  const TemporaryFolder folder;
  write_file(folder.path / "train.de", "ein ha@@ us\nzwei hunde laufen\ndrei\nein hund\n");
  write_file(folder.path / "train.en", "a hou@@ se\ntwo dogs run\nthree\na dog\n");
  write_file(folder.path / "valid.de", "zwei hunde\ndrei\n");
  write_file(folder.path / "valid.en", "two dogs\nthree\n");
  const json options = {{"folder", folder.path.string()}, {"cache", (folder.path / "cache").string()}};
  const DataSplits splits = make_dataset("translation", options);
  const auto model = make_model({{"name", "translator"}, {"iterations", 3}}, splits.train->item_shape(), splits.train->classes());
  const TrainerOptions recipe{.optimizer = {.kind = OptimizerOptions::Kind::adamw,
                                            .beta2 = 0.98,
                                            .weight_decay = 1e-4,
                                            .form = OptimizerOptions::Form::fairseq,
                                            .decay_all = true},
                              .schedule = {.kind = ScheduleOptions::Kind::inverse_sqrt, .lr = 5e-4, .warmup = 4000},
                              .label_smoothing = 0.1,
                              .smoothing_form = Smoothing::fairseq,
                              .epochs = 2,
                              .batch_size = 8};
  Trainer trainer(*model, *splits.train, recipe);
  for (int i = 0; i < 2; ++i) CHECK(std::isfinite(trainer.step().loss));
  CHECK(trainer.evaluate(*splits.test).items == 5);  // words and ends, no padding

  json raw = options;
  raw.update({{"subwords", 50}, {"lower_case", true}});
  CHECK(make_dataset("translation", raw).train->size() == 4);
  CHECK(make_dataset("translation", raw).train->files().size() == 4);

  const json small = {{"name", "translator"}, {"dim", 8}, {"heads", 2}, {"encoder_layers", 1}, {"decoder_layers", 1}, {"mlp_dim", 8}};
  const auto advance = [](Trainer& t, int updates) {
    std::vector<double> losses;
    for (int u = 0; u < updates; ++u) {
      if (t.epoch_complete()) t.end_epoch(0);
      losses.push_back(t.step().loss);
    }
    return losses;
  };
  const auto fresh = [&] { return make_model(small, splits.train->item_shape(), splits.train->classes()); };
  const auto a = fresh(), b = fresh(), c = fresh();
  Trainer whole(*a, *splits.train, recipe), first(*b, *splits.train, recipe), second(*c, *splits.train, recipe);
  const int64_t batches = whole.batches_per_epoch();
  std::vector<double> expected = advance(whole, static_cast<int>(batches) + 1), got = advance(first, 1);
  first.save(folder.path / "c.safetensors");
  second.resume(read_checkpoint(folder.path / "c.safetensors"));
  const auto rest = advance(second, static_cast<int>(batches));
  got.insert(got.end(), rest.begin(), rest.end());
  CHECK(got == expected);
}

TEST_CASE("real parallel text: counts and a batch") {
  const char* variable = std::getenv("SINKGRAD_DATA");
  const fs::path root = fs::absolute(variable ? variable : SINKGRAD_SOURCE_DIR "/../shared/data");
  if (!fs::exists(root / "multi30k")) {
    WARN("skipped: no " << root / "multi30k"
                        << " (set SINKGRAD_DATA to the folder that holds multi30k/)");
    return;
  }
  CHECK(read_parallel(root / "multi30k", "train", "de", "en").source.size() == 29'000);
  CHECK(read_parallel(root / "multi30k", "test_2016_flickr", "de", "en").source.size() == 1000);
  const ParallelText ted = read_parallel(root / "iwslt14-mixer", "valid.de-en", "de", "en");
  CHECK(ted.source.size() == 6969);
  const TranslationSource source("ted", std::make_shared<TranslationText>(Segmentation{}, ted), ted, 175);
  const auto plan = source.plan(4096, Purpose::training, 1, false);
  BatchMemory memory;
  CHECK(source.batch(plan->indices(0, 0), 0, memory).inputs.shape()[0] == 3);
}
