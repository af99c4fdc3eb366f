// What the synthetic image sets share: exact arithmetic (no libm but floor and sqrt, so that pixels have the same bits on every IEEE
// machine; such files are built with -ffp-contract=off) and the plumbing of a Dataset whose items are drawn on demand.
#pragma once
#include <cmath>

#include "core/parallel.h"
#include "datasets/dataset.h"

namespace sinkgrad {

/// Images drawn from (seed, split, index) alone; item i has class i mod classes. With `augment`, training draws new ones in each epoch.
class DrawnImages : public Dataset {
 public:
  struct Options {
    bool augment = false;
    uint64_t seed = 0;
  };
  int64_t size() const override { return size_; }
  const std::vector<std::string>& class_names() const override { return class_names_; }
  std::string description() const override { return cat(name_, ' ', split_, ": ", size_, " images ", item_shape(), ", ", classes(), " classes"); }
  void load(std::span<const uint32_t> indices, std::optional<uint64_t> epoch, float* inputs, int32_t* labels) const override {
    for (const uint32_t index : indices) require(index < size_, name_, ": item ", index, " is out of range, there are ", size_);
    const uint64_t drawing = options_.augment && epoch ? *epoch + 1 : 0;
    const int64_t pixels = item_shape().count();
    parallel_for(static_cast<int64_t>(indices.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const uint32_t index = indices[static_cast<size_t>(row)];
        labels[row] = static_cast<int32_t>(index % class_names_.size());
        draw(labels[row], RandomStream(options_.seed, stream_, drawing << 32 | index), inputs + pixels * row);
      }
    });
  }
  std::vector<int64_t> label_histogram() const override {
    std::vector<int64_t> counts(class_names_.size());
    for (int64_t c = 0; c < classes(); ++c) counts[static_cast<size_t>(c)] = (size_ + classes() - c - 1) / classes();
    return counts;
  }

 protected:
  DrawnImages(const std::string& name, const std::string& split, int64_t size, std::vector<std::string> class_names, const Options& options)
      : name_(name), split_(split), stream_(name + " " + split), size_(size), class_names_(std::move(class_names)), options_(options) {
    require<InputError>(size >= 1 && size <= INT32_MAX, name, ": the number of ", split, " images must be 1 to ", INT32_MAX, ", got ", size);
  }
  virtual void draw(int32_t label, RandomStream random, float* pixels) const = 0;

 private:
  std::string name_, split_, stream_;
  int64_t size_;
  std::vector<std::string> class_names_;
  Options options_;
};

}  // namespace sinkgrad
