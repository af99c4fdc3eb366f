// Rank of pure attention over depth (Dong, Cordonnier, Loukas 2021): X <- P(X) X W_V with fresh random weights in every layer and neither skip
// connections nor MLPs. Softmax or Sinkhorn, the distance from rank one is cubed by a layer once it is small: doubly exponential in depth.
#pragma once
#include <cstdint>
#include <vector>

namespace sinkgrad {

struct RankDecay {
  int half_steps = 1;
  std::vector<double> residual;        ///< |X - 1 mean(X)^T| / |X| in Frobenius norm, before the first layer and after each
  std::vector<double> effective_rank;  ///< (sum s^2)^2 / sum s^4 of the singular values s of X: their number when they are equal
};
/// `tokens` normal vectors of `width`; scores have standard deviation about `sharpness` in the first layer.
RankDecay measure_rank_decay(uint64_t seed, int half_steps, int layers, int64_t tokens = 32, int64_t width = 32, double sharpness = 3);

/// The order of a layer: the slope of log residual after one layer against log residual before, from tokens that are close to rank one
/// (residuals 1e-2 and 1e-3). 3 by the theorem.
double contraction_order(uint64_t seed, int half_steps, int64_t tokens = 32, int64_t width = 32);

}  // namespace sinkgrad
