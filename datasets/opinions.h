// Synthetic opinions: short English texts from a small grammar with negation and contrast, labelled by what they say in the end. No file needed.
#pragma once
#include <cstdint>
#include <string>

#include "datasets/registry.h"

namespace sinkgrad {

struct Opinion {
  std::string text;  ///< words and punctuation between spaces
  bool positive = false;
};

/// Opinion `index` of a stream: a function of its arguments alone. About half of them are positive.
Opinion make_opinion(uint64_t seed, std::string_view split, uint64_t index);

/// Options of data set "opinions", see datasets/registry.h.
DataSplits make_opinions(const nlohmann::json& options);

}  // namespace sinkgrad
