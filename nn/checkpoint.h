// A checkpoint is one safetensors file: model.* (parameters and buffers under their dotted paths), optim.m.* and optim.v.* (moments),
// and in its metadata, under "sinkgrad", a JSON object {"format", "recipe", "state"}. PyTorch reads it with safetensors.torch.load_file.
#pragma once
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/safetensors.h"
#include "nn/optimizer.h"

namespace sinkgrad {

/// Sums over the items of some batches, and their means.
struct Score {
  double loss_sum = 0;  ///< of the batch loss times the batch size
  int64_t correct = 0, items = 0;
  double loss() const { return loss_sum / static_cast<double>(items); }
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(items); }
};

/// Where a training run stands. With the tensors it is all that a bitwise equal continuation needs.
struct TrainingState {
  uint64_t seed = 0;                  ///< keys initial weights, data order and dropout
  int64_t items = 0, batch_size = 0;  ///< what the data order is made of
  int64_t step = 0;                   ///< updates done; keys the random ops of the next one
  int64_t epoch = 0, position = 0;    ///< epochs done, batches done in the present one
  double best_accuracy = -1;          ///< on the test set; below 0 before the first evaluation
  int64_t best_epoch = 0;             ///< epochs done then
  Score window;                       ///< training items since the last line of the log
};

/// The content of a checkpoint file.
struct Checkpoint {
  std::filesystem::path path;
  nlohmann::ordered_json recipe;
  TrainingState state;
  std::map<std::string, Tensor> tensors;

  /// Copies the tensors into a model and, where given, its optimizer. InputError listing every tensor that is missing, unexpected or of
  /// another shape or type; nothing is changed then.
  void restore(const ParameterPack& pack, Optimizer* optimizer = nullptr) const;
};

/// Writes a checkpoint atomically: a crash leaves the previous file. Without an optimizer it holds weights only: a model to use or to start from.
void write_checkpoint(const std::filesystem::path& path, const nlohmann::ordered_json& recipe, const TrainingState& state, const ParameterPack& pack,
                      const Optimizer* optimizer = nullptr);
/// The checkpoint in a safetensors file that was read from `path`; none when its metadata is not that of one. InputError when it is malformed.
std::optional<Checkpoint> checkpoint_in(SafetensorsFile file, const std::filesystem::path& path);
/// IoError when the file cannot be read, InputError when it is no checkpoint. Where a run's folder or its missing best.safetensors is named, the
/// error names the checkpoint that there is.
Checkpoint read_checkpoint(const std::filesystem::path& path);

}  // namespace sinkgrad
