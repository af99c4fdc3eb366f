// Text on its way to a model: lines and characters, token planes and batches, caches, subwords, the IMDb layout from folder and archive.
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "core/file.h"
#include "datasets/cache.h"
#include "datasets/imdb.h"
#include "datasets/opinions.h"
#include "datasets/subwords.h"
#include "datasets/text_classification.h"
#include "datasets/text_file.h"
#include "models/registry.h"
#include "nn/trainer.h"
#include "temporary_folder.h"
#include "tiny_text.h"
#include "tools/ui/cache_notes.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

struct Folder : TemporaryFolder {
  void write(const fs::path& name, std::string_view text) const {
    fs::create_directories((path / name).parent_path());
    write_file(path / name, text);
  }
};

using Strings = std::vector<std::string>;

json imdb_options(const Folder& folder) {
  return {{"folder", folder.path.string()}, {"cache", (folder.path / "cache").string()}, {"vocabulary", 40}, {"max_length", 6}};
}

/// A file of a tar archive, or with type 'L' the long name of the next.
std::string tar_entry(const std::string& name, char type, const std::string& content) {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  header.replace(100, 7, "0000644");
  char size[12];
  std::snprintf(size, sizeof size, "%011zo", content.size());
  header.replace(124, 11, size);
  header.replace(136, 11, "00000000000");
  header[156] = type;
  header.replace(257, 7, "ustar  ");
  header.replace(148, 8, 8, ' ');
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  std::snprintf(size, sizeof size, "%06o", sum);
  header.replace(148, 7, std::string(size, 6) + '\0');
  const size_t padded = (content.size() + 511) / 512 * 512;
  return header + content + std::string(padded - content.size(), '\0');
}

TextClassification toy_texts(TextBatches batches, int64_t count = 23, int64_t max_length = 50) {
  TokenRows rows;
  std::vector<int32_t> labels;
  for (int32_t i = 0; i < count; ++i) {
    rows.push_back(std::vector<int32_t>(static_cast<size_t>(1 + i * 7 % 20), i));
    labels.push_back(i % 2);
  }
  return TextClassification(
      {.name = "toy", .split = "train", .class_names = {"a", "b"}, .vocabulary = 100, .max_length = max_length, .batches = batches}, rows, labels);
}

}  // namespace

TEST_CASE("fault 69: only a line feed ends a line, only U+0020 separates words") {
  CHECK(lines_of("a\xe2\x80\xa8"
                 "b\n\n c  d\xc2\xa0"
                 "e\n") == Strings{"a\xe2\x80\xa8"
                                   "b",
                                   "",
                                   " c  d\xc2\xa0"
                                   "e"});
  CHECK(lines_of("a\r\nb\x0b\x0c\xc2\x85") == Strings{"a", "b\x0b\x0c\xc2\x85"});
  CHECK(lines_of("").empty());
  CHECK(lines_of("\n\n") == Strings{"", ""});
  const auto words = split_words(
      "  c  d\xc2\xa0"
      "e\tf ");
  CHECK(Strings(words.begin(), words.end()) == Strings{"c",
                                                       "d\xc2\xa0"
                                                       "e\tf"});
  CHECK(split_words("   ").empty());
}

TEST_CASE("a byte-order mark is no part of the text, an empty file has no lines") {
  const Folder folder;
  folder.write("marked",
               "\xef\xbb\xbf"
               "one\n\xef\xbb\xbftwo\n");
  CHECK(read_lines(folder.path / "marked") == Strings{"one", "\xef\xbb\xbftwo"});
  folder.write("mark", "\xef\xbb\xbf");
  CHECK(read_lines(folder.path / "mark").empty());
}

TEST_CASE("text that is not UTF-8 is named by file, line and offset") {
  const Folder folder;
  for (const char* bad : {"\xff", "\xc0\xaf", "\xe2\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80"}) {
    folder.write("bad.txt", cat("fine\nab", bad, "\n"));
    CHECK_THROWS_AS(read_lines(folder.path / "bad.txt"), InputError);
    CHECK_THROWS_WITH(read_lines(folder.path / "bad.txt"), Contains("bad.txt: line 2: must be UTF-8") && Contains("offset 2"));
  }
  folder.write("good.txt", "gr\xc3\xbc\xc3\x9f dich\n\xf0\x9f\x99\x82\n");
  CHECK(read_lines(folder.path / "good.txt") == Strings{"gr\xc3\xbc\xc3\x9f dich", "\xf0\x9f\x99\x82"});
  CHECK_THROWS_AS(read_lines(folder.path / "absent.txt"), IoError);
}

TEST_CASE("lower case: Latin, Greek and Cyrillic letters, nothing else") {
  CHECK(lower_case("ABC xyz 1[]") == "abc xyz 1[]");
  CHECK(lower_case("\xc3\x84\xc3\x96\xc3\x9c\xc3\x9f \xc3\x97 \xc3\x89") == "\xc3\xa4\xc3\xb6\xc3\xbc\xc3\x9f \xc3\x97 \xc3\xa9");
  CHECK(lower_case("\xc4\x8c\xc5\x81\xc5\xa0\xc5\xbd\xc5\xb8") == "\xc4\x8d\xc5\x82\xc5\xa1\xc5\xbe\xc3\xbf");  // Č Ł Š Ž Ÿ
  CHECK(lower_case("\xce\xa9\xd0\x96\xd0\x81") == "\xcf\x89\xd0\xb6\xd1\x91");
  CHECK(lower_case("\xf0\x9f\x99\x82\xff") == "\xf0\x9f\x99\x82\xff");
}

TEST_CASE("batches of texts are as long as their longest text, or as the longest may be") {
  BatchMemory memory;
  const std::vector<uint32_t> indices = {0, 3, 1};  // 1, 2 and 8 tokens
  for (const TextBatches kind : {TextBatches::bucketed, TextBatches::shuffled, TextBatches::fixed}) {
    const TextClassification texts = toy_texts(kind);
    const Batch batch = texts.batch(indices, std::nullopt, memory);
    CHECK(batch.inputs.shape() == Shape{3, 3, kind == TextBatches::fixed ? 50 : 8});
    CHECK(to_doubles(batch.labels.view()) == std::vector<double>{0, 1, 1});
    CHECK(batch.size() == 3);
    CHECK(!batch.context);
  }
  const TextClassification cut = toy_texts(TextBatches::shuffled, 23, 5);
  CHECK(to_doubles(cut.batch(std::vector<uint32_t>{1}, std::nullopt, memory).inputs.view()) ==
        std::vector<double>{1, 1, 1, 1, 1, 1, 2, 3, 4, 5, 0, 0, 0, 0, 0});
  CHECK_THAT(cut.description(), Contains("toy train: 23 texts, 4 tokens on average (17 cut at 5), vocabulary 100, 2 classes"));
  CHECK(cut.label_histogram() == std::vector<int64_t>{12, 11});
}

TEST_CASE("length buckets: every item once, similar lengths together, a new order each epoch, the same from the same seed") {
  std::vector<int64_t> lengths(1013);
  for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<int64_t>(i * 37 % 211);
  LengthBuckets plan(lengths, 16, Purpose::training, 3), same(lengths, 16, Purpose::training, 3), other(lengths, 16, Purpose::training, 4);
  CHECK(plan.batches() == 64);
  std::vector<std::vector<uint32_t>> epochs;
  for (uint64_t epoch = 0; epoch < 2; ++epoch) {
    std::vector<uint32_t> seen;
    int64_t padding = 0, partial = 0;
    for (int64_t k = 0; k < plan.batches(); ++k) {
      const auto batch = plan.indices(epoch, k);
      const auto again = same.indices(epoch, k);
      REQUIRE(std::equal(batch.begin(), batch.end(), again.begin(), again.end()));
      int64_t longest = 0, sum = 0;
      for (const uint32_t i : batch) longest = std::max(longest, lengths[i]), sum += lengths[i];
      padding += longest * static_cast<int64_t>(batch.size()) - sum;
      partial += batch.size() < 16;
      seen.insert(seen.end(), batch.begin(), batch.end());
    }
    CHECK(partial == 1);
    CHECK(padding < 5000);  // of 106,000 tokens; 90,000 without buckets
    epochs.push_back(seen);
    std::sort(seen.begin(), seen.end());
    CHECK(seen.size() == lengths.size());
    CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
  }
  CHECK(epochs[0] != epochs[1]);
  const auto first = plan.indices(0, 0), elsewhere = other.indices(0, 0);
  CHECK(!std::equal(first.begin(), first.end(), elsewhere.begin(), elsewhere.end()));
  CHECK_THROWS_AS(plan.indices(0, 64), Error);
}

TEST_CASE("a cache file is made once, and again when it is damaged, belongs to another key or is of no use") {
  const Folder folder;
  const fs::path path = cache_path((folder.path / "deep" / "cache").string(), folder.path, "t");
  int made = 0;
  const auto values = [&](const std::string& key) {
    const auto build = [&](AtomicFile& file) {
      ++made;
      const std::vector<int32_t> written = {1, 2, 9};
      file.write(written.data(), written.size() * sizeof(int32_t));
      return json{{"name", "nine"}};
    };
    const auto usable = [](const CacheFile& cache) { return cache.data<int32_t>().back() < 10; };
    const auto cache = CacheFile::open_or_build(path, key, build, usable);
    CHECK(cache->meta().at("name") == "nine");
    return std::vector<int32_t>(cache->data<int32_t>().begin(), cache->data<int32_t>().end());
  };
  for (int i = 0; i < 2; ++i) CHECK(values("a") == std::vector<int32_t>{1, 2, 9});
  CHECK(made == 1);
  values("b");
  values("a");
  CHECK(made == 3);
  const std::string whole = read_file(path, 1 << 20);
  write_file(path, whole.substr(0, whole.size() - 1));  // cut
  values("a");
  CHECK(made == 4);
  CHECK(read_file(path, 1 << 20) == whole);
  std::string beyond = whole;
  beyond[64 + 8] = 11;  // the last value
  write_file(path, beyond);
  values("a");
  CHECK(made == 5);
  CHECK(Fingerprint().add("ab").text() != Fingerprint().add("a").add("b").text());
  CHECK_THROWS_WITH(cache_path("/proc/none", folder.path, "t"), Contains("SINKGRAD_CACHE"));

  // Beside an archive as beside a folder; in another folder under a name that tells them apart.
  folder.write("data.tar.gz", "x");
  CHECK(cache_path("", folder.path / "data.tar.gz", "t") == folder.path / "sinkgrad-t.cache");
  CHECK(cache_path("", folder.path, "t") == folder.path / "sinkgrad-t.cache");
  CHECK(cache_path(folder.path.string(), folder.path / "data.tar.gz", "t") != cache_path(folder.path.string(), folder.path, "t"));
}

TEST_CASE("who listens hears of each cache file before it is made, and that it is over also when it fails") {
  const Folder folder;
  const fs::path path = folder.path / "t.cache";
  Strings heard;
  set_cache_listener([&](const fs::path& told) {
    heard.push_back("making " + told.filename().string());
    return std::shared_ptr<void>(&heard, [](Strings* all) { all->push_back("over"); });
  });
  const auto open = [&](const char* key, bool fails) {
    CacheFile::open_or_build(path, key, [&](AtomicFile&) -> json {
      heard.push_back("at it");
      require<InputError>(!fails, "failed");
      return {};
    });
  };
  CHECK_THROWS_AS(open("a", true), InputError);
  open("a", false);
  open("a", false);
  const Strings once = {"making t.cache", "at it", "over"};
  CHECK(heard == Strings{once[0], once[1], once[2], once[0], once[1], once[2]});
  set_cache_listener({});
  open("b", false);
  CHECK(heard.size() == 7);
}

TEST_CASE("people are told that a cache file is made, that it goes on, and how long it took") {
  struct Lines : std::stringbuf {
    std::atomic<int> count = 0;
    int sync() override { return ++count, 0; }
  } lines;
  std::ostream out(&lines);
  std::shared_ptr<void> told = tell_of_making(out, "folder/t.cache", std::chrono::milliseconds(1));
  CHECK(lines.count >= 1);
  while (lines.count < 3) std::this_thread::yield();
  told.reset();
  CHECK_THAT(lines.str(),
             Catch::Matchers::StartsWith("note   making folder/t.cache, once; this may take minutes\nnote   still making it after 0s\n"));
  CHECK_THAT(lines.str(), Contains("\nnote   that took "));
}

TEST_CASE("a tokenizer is learned once for the same texts and settings, and again when its file was changed") {
  const Folder folder;
  const Strings texts = {"the cat sat on the mat", "the dog sat on the log"};
  const auto learn = [&](int64_t pieces) { return cached_subwords("", folder.path, texts, {.vocabulary = pieces}); };
  const auto files = [&] {
    std::vector<fs::path> all;
    for (const auto& entry : fs::directory_iterator(folder.path)) all.push_back(entry.path());
    return all;
  };
  const std::string model = learn(30);
  REQUIRE(files().size() == 1);
  CHECK(learn(30) == model);
  CHECK(files().size() == 1);
  std::string changed = read_file(files()[0], 1 << 24);
  changed[64 + 50] ^= 1;
  write_file(files()[0], changed);
  CHECK(learn(30) == model);
  CHECK(learn(31) != model);
  CHECK(files().size() == 2);
}

TEST_CASE("subwords: special pieces, round trip, unknown characters, mistakes") {
  Strings texts;
  for (const char* text : {"the cat sat on the mat", "the dog sat on the log", "a cat and a dog", "caf\xc3\xa9 on the log"}) texts.emplace_back(text);
  const std::string model = Subwords::train(texts, {.vocabulary = 40});
  CHECK(Subwords::train(texts, {.vocabulary = 40}) == model);
  const Subwords subwords(model, "test.model");
  CHECK(subwords.size() == 40);
  for (const std::string& text : texts) {
    CHECK(Subwords::join(subwords.pieces(text)) == text);
    for (const int32_t id : subwords.encode(text)) CHECK((id >= 7 && id < 40));
  }
  CHECK(subwords.encode("[CLS]").back() == 5);
  const std::vector<int32_t> unknown = subwords.encode("\xe2\x82\xac");
  CHECK(std::count(unknown.begin(), unknown.end(), Subwords::kUnknown) == 1);
  CHECK(subwords.encode("").empty());
  // ModelProto.pieces[0].piece of one letter, NUL and nothing: the last two would end the program in sentencepiece.
  for (const std::string_view piece : {std::string_view("\x0a\x03\x0a\x01\0", 5), std::string_view("\x0a\x02\x0a\0", 4)})
    CHECK_THROWS_WITH(Subwords(piece, "x.model"), Contains("x.model: a piece of this sentencepiece model is empty or has a NUL in it"));
  CHECK_THROWS_WITH(Subwords(std::string_view("\x0a\x03\x0a\x01"
                                              "a",
                                              5),
                             "x.model"),
                    Contains("x.model: is no sentencepiece model"));
  CHECK_THROWS_WITH(Subwords("nonsense", "x.model"), Contains("x.model: is no sentencepiece model"));
  CHECK_THROWS_AS(Subwords::train(texts, {.vocabulary = 100'000}), InputError);
  CHECK_THROWS_WITH(Subwords::train(texts, {.vocabulary = 100'000}),
                    Catch::Matchers::Matches("subwords: 100000 pieces cannot be learned from 4 texts: they have room for [0-9]+"));
  CHECK_THROWS_WITH(Subwords::train(texts, {.vocabulary = 9}),
                    Catch::Matchers::Matches("subwords: 9 pieces cannot be learned from 4 texts: their characters need [0-9]+"));
  CHECK_THROWS_AS(Subwords::train({}, {}), InputError);
}

TEST_CASE("IMDb from a folder and from an archive is the same, and malformed trees are named") {
  const Folder folder;
  tiny::write_reviews(folder.path);
  const std::vector<Review> reviews = read_reviews(folder.path);
  REQUIRE(reviews.size() == 6);
  CHECK(reviews[0].text == "a weak film with a weak plot");  // one line, stripped, tabs become spaces
  CHECK(reviews[1].text == "dull and dull again<br /><br />really dull");
  CHECK(reviews[3].text == "Caf\xc3\xa9 scenes, great and great again");
  CHECK(reviews[3].id == 12);
  CHECK((reviews[3].positive && !reviews[3].test && reviews[5].test));
  CHECK(read_reviews(folder.path / "aclImdb").size() == 6);

  const Folder packed;
  const fs::path archive = packed.path / "aclImdb_v1.tar.gz";
  REQUIRE(std::system(cat("tar -czf ", archive.string(), " -C ", folder.path.string(), " aclImdb").c_str()) == 0);
  for (const fs::path& path : {archive, packed.path}) {
    const std::vector<Review> same = read_reviews(path);
    REQUIRE(same.size() == 6);
    for (size_t i = 0; i < 6; ++i) CHECK((same[i].text == reviews[i].text && same[i].id == reviews[i].id && same[i].test == reviews[i].test));
  }
  const std::string whole = read_file(archive, 1 << 20);
  write_file(archive, whole.substr(0, whole.size() / 2));
  CHECK_THROWS_WITH(read_reviews(archive),
                    Contains("aclImdb_v1.tar.gz") && Contains("archive") && Contains("it ends too early") && !Contains("unknown reason"));
  write_file(archive, "no archive at all");
  CHECK_THROWS_WITH(read_reviews(archive), Contains("aclImdb_v1.tar.gz"));
  // Formats that read other files or start programs are not archives here.
  write_file(archive, cat("#mtree\n./train/pos/1_9.txt type=file contents=", folder / "aclImdb/train/pos/0_10.txt", "\n"));
  CHECK_THROWS_WITH(read_reviews(archive), Contains("is no archive that can be read"));
  fs::remove(archive);
  REQUIRE(::mkfifo(archive.c_str(), 0600) == 0);
  for (const fs::path& path : {archive, packed.path})
    CHECK_THROWS_WITH(read_reviews(path), archive.string() + ": must be a regular file, it is a pipe");
  fs::remove(archive);
  // A name of 200,000 letters is a name.
  const std::string long_name(200'000, 'a');
  write_file(archive, tar_entry("././@LongLink", 'L', long_name + '\0') + tar_entry("a", '0', "x"));
  CHECK_THROWS_WITH(read_reviews(archive), Contains("holds no review in train/neg"));
  write_file(archive, tar_entry("././@LongLink", 'L', "train/pos/" + long_name + '\0') + tar_entry("a", '0', "x"));
  CHECK_THROWS_WITH(read_reviews(archive), Contains(": train/pos/aaa") && Contains("...: reviews must be called ID_RATING.txt"));

  const auto refused = [&](const char* name, std::string_view text, const std::string& message) {
    folder.write(fs::path("aclImdb") / name, text);
    CHECK_THROWS_AS(read_reviews(folder.path), InputError);
    CHECK_THROWS_WITH(read_reviews(folder.path), Contains(name) && Contains(message));
    fs::remove(folder.path / "aclImdb" / name);
  };
  refused("train/pos/5_3.txt", "x", "must lie in 7..10, got 3");
  refused("train/neg/notes.txt", "x", "ID_RATING.txt");
  refused("test/neg/7_1.txt", "\xff\xfe", "must be UTF-8");
  refused("test/pos/8_8.txt", " \nsecond", "it is empty");
  folder.write("aclImdb/train/neg/0_1.txt", "twice");
  CHECK_THROWS_WITH(read_reviews(folder.path), Contains("two reviews of train/neg have the id 0"));
  fs::remove_all(folder.path / "aclImdb/test/pos");
  CHECK_THROWS_AS(read_reviews(folder.path), IoError);
  CHECK_THROWS_WITH(read_reviews(packed.path / "absent"), Contains("does not exist") && Contains("ID_RATING.txt"));
  fs::remove(archive);
  CHECK_THROWS_WITH(read_reviews(packed.path), Contains("holds no archive"));
}

TEST_CASE("the imdb data set: splits, cached tokens, and two training steps of the paper's recipe") {
  const Folder folder;
  tiny::write_reviews(folder.path);
  const json options = imdb_options(folder);
  const DataSplits splits = make_dataset("imdb", options);
  CHECK(splits.train->size() == 4);
  CHECK(splits.test->size() == 2);
  CHECK(splits.train->item_shape() == Shape{6, 40});
  CHECK(splits.train->label_histogram() == std::vector<int64_t>{2, 2});
  CHECK(std::distance(fs::directory_iterator(folder.path / "cache"), fs::directory_iterator()) == 2);

  json random = options;
  random["split"] = "random";
  const DataSplits split0 = make_dataset("imdb", random), again = make_dataset("imdb", random);
  CHECK(split0.train->size() == 4);
  CHECK(split0.test->size() == 2);
  const auto tokens = [](const DataSource& source) {
    BatchLoader loader(source, 10, Purpose::evaluation);
    return to_doubles(loader.load(0, 0).inputs.view());
  };
  CHECK(tokens(*split0.test) == tokens(*again.test));
  std::set<std::vector<double>> tests;
  for (int seed = 0; seed < 8; ++seed) {
    random["seed"] = seed;
    tests.insert(tokens(*make_dataset("imdb", random).test));
  }
  CHECK(tests.size() > 2);

  json limited = options;
  limited["limit_train"] = 3;
  CHECK(make_dataset("imdb", limited).train->size() == 3);
  for (const auto& [key, value] : std::map<std::string, json>{{"split", "officiall"}, {"batches", "sorted"}, {"tokenizer", "/absent.model"}}) {
    json wrong = options;
    wrong[key] = value;
    CHECK_THROWS_AS(make_dataset("imdb", wrong), Error);
  }

  for (const bool released : {false, true}) {
    json model = {{"name", "text_encoder"}, {"iterations", 3}};
    json data = options;
    data["batches"] = released ? "fixed" : "shuffled";
    if (released)
      model.update(
          {{"gradient", "frozen"}, {"random_positions", true}, {"padding_queries_vote", true}, {"pool_padding", true}, {"double_softmax", true}});
    const DataSplits small = make_dataset("imdb", data);
    const auto encoder = make_model(model, small.train->item_shape(), small.train->classes());
    CHECK(encoder->attentions().size() == 6);
    CHECK(encoder->attentions()[0]->sinkhorn.gradient == (released ? SinkhornGradient::frozen : SinkhornGradient::unrolled));
    Trainer trainer(*encoder, *small.train, {.schedule = {.lr = 1e-4}, .epochs = 1, .batch_size = 2});
    while (!trainer.epoch_complete()) CHECK(std::isfinite(trainer.step().loss));
    CHECK(trainer.state().step == 2);
    CHECK(trainer.evaluate(*small.test).items == 2);
  }
}

TEST_CASE("training on texts of different lengths resumes to the bit") {
  const TextClassification texts = toy_texts(TextBatches::bucketed);
  const json config = {{"name", "text_encoder"}, {"dim", 8}, {"heads", 2}, {"depth", 1}, {"mlp_dim", 8}, {"iterations", 3}};
  const TrainerOptions options{.epochs = 4, .batch_size = 4};
  const auto advance = [](Trainer& trainer, int updates) {
    std::vector<double> losses;
    for (int u = 0; u < updates; ++u) {
      if (trainer.epoch_complete()) trainer.end_epoch(0);
      losses.push_back(trainer.step().loss);
    }
    return losses;
  };
  const auto model = [&] { return make_model(config, texts.item_shape(), texts.classes()); };
  const auto whole_model = model(), first_model = model(), second_model = model();
  Trainer whole(*whole_model, texts, options), first(*first_model, texts, options), second(*second_model, texts, options);
  std::vector<double> expected = advance(whole, 15), got = advance(first, 8);
  const Folder folder;
  first.save(folder.path / "c.safetensors");
  second.resume(read_checkpoint(folder.path / "c.safetensors"));
  const std::vector<double> rest = advance(second, 7);
  got.insert(got.end(), rest.begin(), rest.end());
  CHECK(got == expected);
}

TEST_CASE("opinions: a function of seed and index, half of each kind, known words only") {
  CHECK(make_opinion(0, "train", 5).text == make_opinion(0, "train", 5).text);
  std::set<std::string> texts;
  int positive = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    const Opinion opinion = make_opinion(0, "train", i);
    positive += opinion.positive;
    texts.insert(opinion.text);
    const auto words = split_words(opinion.text);
    CHECK(words.back() == ".");
    CHECK(make_opinion(0, "test", i).text != opinion.text);
  }
  CHECK(std::abs(positive - 500) < 60);
  CHECK(texts.size() > 900);
  const DataSplits splits = make_dataset("opinions", {{"train", 50}, {"test", 10}});
  CHECK(splits.train->size() == 50);
  CHECK(splits.test->classes() == 2);
}

TEST_CASE("IMDb itself") {
  const char* variable = std::getenv("SINKGRAD_DATA");
  const fs::path folder = fs::path(variable ? variable : SINKGRAD_SOURCE_DIR "/../shared/data") / "imdb";
  if (!fs::exists(folder)) {
    WARN("skipped: no " << folder << " (set SINKGRAD_DATA to the folder that holds imdb/)");
    return;
  }
  const std::vector<Review> reviews = read_reviews(folder);
  std::map<std::pair<bool, bool>, std::pair<int64_t, int64_t>> counts;  // (test, positive) -> (reviews, sum of ids)
  for (const Review& r : reviews) {
    auto& [count, ids] = counts[{r.test, r.positive}];
    ++count, ids += r.id;
  }
  for (const bool test : {false, true})
    for (const bool positive : {false, true}) CHECK(counts[{test, positive}] == std::pair<int64_t, int64_t>{12'500, 12'500LL * 12'499 / 2});
  CHECK_THAT(reviews.front().text, Catch::Matchers::StartsWith("Story of a man who has unnatural feelings for a pig."));
}
