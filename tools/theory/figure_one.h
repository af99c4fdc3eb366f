// Figure 1 of the paper: the same ten queries and ten keys linked by the plain kernel, by softmax and by Sinkhorn.
#pragma once
#include <vector>

namespace sinkgrad {

/// The plot's own conventions, which are not the model's: the kernel is e^{-q.k}, softmax normalises over the queries of each key, every matrix
/// has total 1, and Sinkhorn makes 200 half-steps, keys first.
struct FigureOne {
  std::vector<double> queries, keys;              ///< (10, 2)
  std::vector<double> kernel, softmax, sinkhorn;  ///< (10, 10): query, key
};
FigureOne figure_one();
/// Entries above 1e-12, those that the figure draws.
int links(const std::vector<double>& plan);

}  // namespace sinkgrad
