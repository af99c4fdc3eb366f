// How texts of different lengths travel to a model: one i32 tensor (3, n, longest) whose planes are tokens, positions and padding.
// Rows are padded on the right; a model that masks correctly gives the same for any amount of padding.
#pragma once
#include <cstdint>
#include <span>

#include "datasets/dataset.h"

namespace sinkgrad {

/// Numbers that a model and its data agree on.
struct TokenLayout {
  int32_t padding = 0;         ///< token that fills a row
  int32_t first_position = 1;  ///< of the first token; the next ones follow
  int32_t padding_position = 0;
};

/// Fills (3, n, longest) from n rows: row(i) gives the tokens of row i, at most `longest` of them.
template <class RowOf>
void write_tokens(const Tensor& planes, const TokenLayout& layout, RowOf&& row) {
  const int64_t n = planes.shape()[1], longest = planes.shape()[2];
  int32_t* tokens = planes.span<int32_t>().data();
  int32_t *positions = tokens + n * longest, *is_padding = positions + n * longest;
  for (int64_t i = 0; i < n; ++i) {
    const std::span<const int32_t> text = row(i);
    for (int64_t j = 0; j < longest; ++j) {
      const bool real = j < static_cast<int64_t>(text.size());
      tokens[i * longest + j] = real ? text[static_cast<size_t>(j)] : layout.padding;
      positions[i * longest + j] = real ? layout.first_position + static_cast<int32_t>(j) : layout.padding_position;
      is_padding[i * longest + j] = !real;
    }
  }
}

/// Many token sequences in two flat arrays.
class TokenRows {
 public:
  void push_back(std::span<const int32_t> row) {
    tokens_.insert(tokens_.end(), row.begin(), row.end());
    ends_.push_back(static_cast<int64_t>(tokens_.size()));
  }
  int64_t size() const { return static_cast<int64_t>(ends_.size()); }
  std::span<const int32_t> operator[](int64_t i) const {
    const int64_t begin = i == 0 ? 0 : ends_[static_cast<size_t>(i - 1)];
    return std::span(tokens_).subspan(static_cast<size_t>(begin), static_cast<size_t>(ends_[static_cast<size_t>(i)] - begin));
  }
  int64_t length(int64_t i) const { return static_cast<int64_t>((*this)[i].size()); }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::vector<int64_t>& ends() const { return ends_; }

 private:
  std::vector<int32_t> tokens_;
  std::vector<int64_t> ends_;
};

}  // namespace sinkgrad
