// Reviews are read whole each time (seconds); what takes long, training and applying the tokenizer, is cached under a fingerprint of them.
#include "datasets/imdb.h"

#include <algorithm>
#include <map>
#include <regex>

#include "core/file.h"
#include "core/names.h"
#include "core/parallel.h"
#include "datasets/archive.h"
#include "datasets/cache.h"
#include "datasets/subwords.h"
#include "datasets/text_classification.h"
#include "datasets/text_file.h"

namespace sinkgrad {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kLongestReview = uint64_t{1} << 20;
constexpr const char* kLayout =
    "the IMDb reviews are needed: aclImdb/{train,test}/{neg,pos}/ID_RATING.txt, or the archive aclImdb_v1.tar.gz "
    "(https://ai.stanford.edu/~amaas/data/sentiment)";

/// A labelled review by the name of its file, or one that is left out: the unlabelled ones, notes and hidden files.
bool is_review(const std::string& name) {
  const fs::path path(name), folder = path.parent_path(), label = folder.filename(), split = folder.parent_path().filename();
  const std::string file = path.filename();
  return (split == "train" || split == "test") && (label == "neg" || label == "pos") && !file.empty() && file[0] != '.';
}

Review review_from(const std::string& place, const std::string& name, std::string_view content) {
  static const std::regex pattern(R"((\d{1,9})_(\d{1,2})\.txt)");
  const fs::path path(name), folder = path.parent_path();
  const std::string file = path.filename();
  std::smatch parts;
  require<InputError>(std::regex_match(file, parts, pattern), place, ": reviews must be called ID_RATING.txt");
  Review review{.test = folder.parent_path().filename() == "test", .positive = folder.filename() == "pos", .id = std::stoll(parts[1])};
  const int rating = std::stoi(parts[2]);
  require<InputError>(review.positive ? rating >= 7 && rating <= 10 : rating >= 1 && rating <= 4, place, ": the rating of a ",
                      review.positive ? "positive review must lie in 7..10" : "negative review must lie in 1..4", ", got ", rating);
  review.text = strip(content.substr(0, content.find('\n')));
  std::replace(review.text.begin(), review.text.end(), '\t', ' ');
  require_utf8(review.text, place);
  require<InputError>(!review.text.empty(), place, ": the first line must hold the review, it is empty");
  return review;
}

/// The folder or the archive that `path` means.
fs::path locate(const fs::path& path) {
  require<IoError>(fs::exists(path), path.string(), ": does not exist; ", kLayout);
  if (!fs::is_directory(path)) return path;
  for (const fs::path& folder : {path, path / "aclImdb"})
    if (fs::is_directory(folder / "train" / "pos")) return folder;
  std::vector<fs::path> archives;
  for (const auto& entry : fs::directory_iterator(path))
    if (const std::string name = entry.path().filename(); name.starts_with("aclImdb") && name.find(".tar") != std::string::npos)
      archives.push_back(entry.path());
  require<IoError>(archives.size() == 1, path.string(), ": holds ", archives.empty() ? "no" : "more than one",
                   " archive aclImdb*.tar* and no folder aclImdb; ", kLayout);
  return archives.front();
}

std::vector<std::vector<int32_t>> encode_all(const Subwords& subwords, const std::vector<Review>& reviews) {
  std::vector<std::vector<int32_t>> encoded(reviews.size());
  parallel_for(static_cast<int64_t>(reviews.size()), 64, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      encoded[i] = subwords.encode(reviews[i].text);
      if (encoded[i].empty()) encoded[i] = {Subwords::kUnknown};  // characters that normalisation removes
    }
  });
  return encoded;
}

/// The reviews as tokens, which a cache file keeps, with the length of each.
TokenRows encode_once(const std::string& cache_folder, const fs::path& folder, const Subwords& subwords, const std::string& model,
                      const std::vector<Review>& reviews) {
  Fingerprint key;
  for (const Review& r : reviews) key.add(r.text);
  key.add(model);
  const auto encode = [&](AtomicFile& file) {
    std::vector<size_t> lengths;
    for (const std::vector<int32_t>& text : encode_all(subwords, reviews)) {
      file.write(text.data(), text.size() * sizeof(int32_t));
      lengths.push_back(text.size());
    }
    return nlohmann::json{{"lengths", lengths}};
  };
  const auto usable = [&](const CacheFile& cache) {
    const auto all = cache.data<int32_t>();
    return std::all_of(all.begin(), all.end(), [&](int32_t token) { return token >= 0 && token < subwords.size(); });
  };
  const auto cache = CacheFile::open_or_build(cache_path(cache_folder, folder, "imdb-" + key.text()), key.text(), encode, usable);
  TokenRows rows;
  std::span<const int32_t> left = cache->data<int32_t>();
  for (const size_t length : cache->meta().at("lengths").get<std::vector<size_t>>()) {
    rows.push_back(left.first(length));
    left = left.subspan(length);
  }
  return rows;
}

/// Which reviews are for training and which for testing.
std::pair<std::vector<uint32_t>, std::vector<uint32_t>> split_reviews(const std::vector<Review>& reviews, const std::string& how, uint64_t seed) {
  std::pair<std::vector<uint32_t>, std::vector<uint32_t>> parts;
  const auto n = static_cast<uint32_t>(reviews.size());
  if (how == "official") {
    for (uint32_t i = 0; i < n; ++i) (reviews[i].test ? parts.second : parts.first).push_back(i);
  } else {
    const std::vector<std::string> known = {"official", "random"};
    require<InputError>(how == "random", "imdb: unknown split '", how, "'", what_there_is(how, known));
    const std::vector<uint32_t> order = RandomStream(seed, "imdb split").permutation(n);
    const auto cut = order.begin() + n / 5 * 4;  // 40,000 of 50,000
    parts = {{order.begin(), cut}, {cut, order.end()}};
  }
  return parts;
}

}  // namespace

std::vector<Review> read_reviews(const fs::path& path) {
  const fs::path found = locate(path);
  std::vector<Review> reviews;
  if (fs::is_directory(found)) {
    for (const char* part : {"train/neg", "train/pos", "test/neg", "test/pos"}) {
      require<IoError>(fs::is_directory(found / part), (found / part).string(), ": does not exist; ", kLayout);
      for (const auto& entry : fs::directory_iterator(found / part))
        if (is_review(entry.path().generic_string()))
          reviews.push_back(review_from(entry.path().string(), entry.path().generic_string(), read_file(entry.path(), kLongestReview)));
    }
  } else {
    read_archive(
        found, is_review,
        [&](const std::string& name, const std::string& content) {
          reviews.push_back(review_from(cat(found.string(), ": ", printable(name)), name, content));
        },
        kLongestReview);
  }
  const auto key = [](const Review& r) { return std::tuple(r.test, r.positive, r.id); };
  std::sort(reviews.begin(), reviews.end(), [&](const Review& a, const Review& b) { return key(a) < key(b); });
  for (size_t i = 1; i < reviews.size(); ++i)
    require<InputError>(key(reviews[i - 1]) != key(reviews[i]), found.string(), ": two reviews of ", reviews[i].test ? "test/" : "train/",
                        reviews[i].positive ? "pos" : "neg", " have the id ", reviews[i].id);
  for (const bool test : {false, true})
    for (const bool positive : {false, true})
      require<InputError>(std::any_of(reviews.begin(), reviews.end(), [&](const Review& r) { return r.test == test && r.positive == positive; }),
                          found.string(), ": holds no review in ", test ? "test/" : "train/", positive ? "pos" : "neg", "; ", kLayout);
  return reviews;
}

DataSplits make_imdb(const nlohmann::json& options) {
  const fs::path folder = data_folder(options["folder"]);
  const std::vector<Review> reviews = read_reviews(folder);
  std::string model;
  if (const std::string tokenizer = options["tokenizer"]; tokenizer.empty()) {
    std::vector<std::string> lines;
    for (const Review& r : reviews)
      if (!r.test) lines.push_back(r.text);
    model = cached_subwords(options["cache"], folder, lines, {.vocabulary = options["vocabulary"]});
  } else {
    model = read_file(data_folder(tokenizer), uint64_t{1} << 28);
  }
  const Subwords subwords(model, data_folder(options["tokenizer"]).string());
  const TokenRows tokens = encode_once(options["cache"], folder, subwords, model, reviews);

  const std::map<std::string, TextBatches> kinds = {
      {"bucketed", TextBatches::bucketed}, {"fixed", TextBatches::fixed}, {"shuffled", TextBatches::shuffled}};
  const auto batches = kinds.find(options["batches"]);
  require<InputError>(batches != kinds.end(), "imdb: batches must be bucketed, fixed or shuffled, got ", options["batches"]);
  const auto [train, test] = split_reviews(reviews, options["split"], options["seed"]);
  const auto part = [&](const char* split, std::vector<uint32_t> items, int64_t limit) {
    if (limit > 0 && limit < static_cast<int64_t>(items.size())) {  // by the seed, so that both classes stay
      const auto order = RandomStream(options["seed"], "imdb limit").permutation(static_cast<uint32_t>(items.size()));
      std::vector<uint32_t> some;
      for (int64_t i = 0; i < limit; ++i) some.push_back(items[order[static_cast<size_t>(i)]]);
      items = some;
    }
    TokenRows rows;
    std::vector<int32_t> labels;
    for (const uint32_t i : items) {
      rows.push_back(tokens[i]);
      labels.push_back(reviews[i].positive);
    }
    return std::make_unique<TextClassification>(TextClassification::Options{.name = "imdb",
                                                                            .split = split,
                                                                            .class_names = {"negative", "positive"},
                                                                            .vocabulary = subwords.size(),
                                                                            .max_length = options["max_length"],
                                                                            .batches = batches->second},
                                                std::move(rows), std::move(labels));
  };
  return {part("train", train, options["limit_train"]), part("test", test, options["limit_test"])};
}

DataDescription imdb_description() {
  return {.summary = "imdb: the Large Movie Review Dataset, 25,000 training and 25,000 test reviews, half of them positive (Maas et al. 2011)",
          .layout = "aclImdb/{train,test}/{neg,pos}/ID_RATING.txt, or the archive as it is published",
          .origin = "https://ai.stanford.edu/~amaas/data/sentiment; cite Maas et al., ACL 2011",
          .files = {{.name = "aclImdb_v1.tar.gz",
                     .url = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
                     .hash = "md5",
                     .checksum = "7c2ac02c03563afcf9b574c7e56c153a"}}};
}

}  // namespace sinkgrad
