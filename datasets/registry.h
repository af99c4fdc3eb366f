// Datasets by name, built from JSON options: what a recipe's "data" section and the command line say.
// Unknown names and option keys are errors that name the nearest known one.
#pragma once
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "datasets/dataset.h"
#include "datasets/description.h"

namespace sinkgrad {

/// Two data sets of equal item shape and classes.
struct DataSplits {
  std::unique_ptr<DataSource> train, test;
};

/// The names that make_dataset knows.
std::vector<std::string> dataset_names();

/// All options of a dataset with their default values (a JSON object).
nlohmann::json dataset_defaults(const std::string& name);

/// Where a relative path in the options lies: in the folder that SINKGRAD_DATA names, otherwise in ./data.
std::filesystem::path data_folder(const std::string& folder);

/// Builds dataset `name`; `options` overrides some of its defaults. A value must have the type of its default. Folders that are relative lie
/// in $SINKGRAD_DATA, or in ./data. Options:
/// - mnist, fashion-mnist: folder, mean and std of pixels in 0..1, limit_train and limit_test (only the first items; 0 = all).
/// - imdb: folder (aclImdb, what holds it, or its archive), tokenizer (a sentencepiece .model; empty: one is trained on the training reviews),
///   vocabulary (pieces of that one), max_length (tokens; the rest of a review is cut), split (official, or random: 4/5 of all reviews for
///   training, drawn by the seed, as the authors do), batches (bucketed by length, shuffled, or fixed: always max_length long), limit_train
///   and limit_test (so many, drawn by the seed), seed, cache (a folder; see datasets/cache.h).
/// - translation: folder, source and target (languages), train, valid and test (names before the language: train.de or train.de.gz), subwords
///   (pieces of a sentencepiece model of both languages that is trained on the training text; 0: the text is prepared, words and their
///   parts "@@ " between spaces), lower_case, source_words and target_words (so many are kept, 0 = all), max_length (words, the end
///   included; longer pairs are left out), cache. Batch sizes count words.
/// - number_words: German number words and English ones; train, valid and test (numbers of pairs), max_length, seed. Batch sizes
///   count words.
/// - opinions: train and test (numbers of texts), seed.
/// - shapes: points per cloud, train and test (numbers of clouds), noise (on surfaces about 2 across), pose (any, upright or fixed),
///   augment (new clouds each epoch), seed.
/// - modelnet40 (meshes or ModelNet40_cloud.h5), modelnet40-2048, labeleddb: folder, cache (a folder for the cache file; empty: beside the
///   data), points per item, normalise (none, standardise or unit_sphere), augment (none, rotate_scale or dropout_scale_shift), seed; for
///   meshes sampled (points drawn on each); modelnet40: skip_glued; labeleddb: test_per_class, drop_duplicates. See point_clouds.h.
/// - cats-dogs: folder, cache, size in pixels, test_share, split (random or by_number), augment, augment_test, crop_area (the least
///   share of an image that a crop keeps), mean and std of the values, on_broken (refuse or skip),
///   on_grey and on_cmyk (convert, skip or refuse), seed. See image_folder.h.
/// - digits, silhouettes: train and test (numbers of images), augment (new images each epoch), seed; silhouettes: size in pixels.
DataSplits make_dataset(const std::string& name, const nlohmann::json& options);

/// What one item is: its shape, and the number of classes.
struct ItemSpec {
  Shape shape;
  int64_t classes = 0;
};
/// The items that make_dataset would give, told without the data: the classes are those of the set as published.
ItemSpec dataset_item(const std::string& name, const nlohmann::json& options);

/// What there is to say about a data set for people who want to get it.
DataDescription dataset_description(const std::string& name);
/// Where make_dataset looks for its files; empty for a data set that is made up.
std::filesystem::path dataset_folder(const std::string& name, const nlohmann::json& options);

}  // namespace sinkgrad
