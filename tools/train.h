// One training run, as `sinkgrad train` and the cells of `sinkgrad study` make it.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sinkgrad {

struct TrainCommand {
  std::string recipe, out, init, progress = "auto", device = "auto";
  std::vector<std::string> settings;
  std::vector<int64_t> keep_epochs = {};  ///< after which the weights are kept as epochN.safetensors
  std::optional<uint64_t> seed;
  int threads = 0;
  bool resume = false, quiet = false, print_config = false, check_finite = false;
  int64_t max_steps = 0, log_every = 0, attention_every = 0;
};

void train(const TrainCommand& command);

}  // namespace sinkgrad
