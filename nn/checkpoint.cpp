// Writing and restoring visit the same list of names, so what is saved is what is restored.
#include "nn/checkpoint.h"

#include <cstring>
#include <deque>

#include "core/json.h"

namespace sinkgrad {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kFormat = 1;
constexpr const char* kMetadataKey = "sinkgrad";

/// Every key of the state, once: visit(name, field).
template <class State, class Visit>
void each_field(State& s, Visit&& visit) {
  visit("seed", s.seed);
  visit("items", s.items);
  visit("batch_size", s.batch_size);
  visit("step", s.step);
  visit("epoch", s.epoch);
  visit("position", s.position);
  visit("best_accuracy", s.best_accuracy);
  visit("best_epoch", s.best_epoch);
  visit("window_loss_sum", s.window.loss_sum);
  visit("window_correct", s.window.correct);
  visit("window_items", s.window.items);
}

/// The flat buffers that a checkpoint holds, on the CPU, and their parts by name.
class HostCopy {
 public:
  HostCopy(const ParameterPack& pack, const Optimizer* optimizer) {
    Module& module = pack.module();
    const Tensor values = copy_of(pack.values()), state = copy_of(pack.state());
    for (const Parameter& p : module.parameters()) views.push_back({"model." + p.name, pack.part(values, p)});
    for (const Buffer& b : module.buffers()) views.push_back({"model." + b.name, pack.part(state, b)});
    if (optimizer)
      for (const Optimizer::State& s : optimizer->state()) {
        const Tensor moments = copy_of(s.values);
        for (const Parameter& p : module.parameters()) views.push_back({"optim." + s.name + "." + p.name, pack.part(moments, p)});
      }
  }
  /// Copies what was changed through the views back to where it came from.
  void write_back() {
    for (auto& [original, copy] : copies_) original.copy_from(copy);
  }

  std::vector<NamedView> views;

 private:
  const Tensor& copy_of(const Tensor& original) { return copies_.emplace_back(original, original.to(Device::cpu())).second; }
  std::deque<std::pair<Tensor, Tensor>> copies_;
};

std::string described(const Shape& shape, DType dtype) { return cat(name_of(dtype), " ", shape); }

}  // namespace

void Checkpoint::restore(const ParameterPack& pack, Optimizer* optimizer) const {
  HostCopy copy(pack, optimizer);
  std::string problems;
  const auto problem = [&](const auto&... parts) { problems += cat(problems.empty() ? "" : "; ", parts...); };
  std::map<std::string, const View*> wanted;
  for (const auto& [name, view] : copy.views) {
    wanted[name] = &view;
    const auto found = tensors.find(name);
    if (found == tensors.end())
      problem(name, " ", described(view.shape, view.dtype), " is missing");
    else if (found->second.shape() != view.shape || found->second.dtype() != view.dtype)
      problem(name, " must be ", described(view.shape, view.dtype), ", got ", described(found->second.shape(), found->second.dtype()));
  }
  for (const auto& [name, tensor] : tensors)
    if (!wanted.contains(name) && (optimizer || name.starts_with("model.")))
      problem(name, " ", described(tensor.shape(), tensor.dtype()), " is unexpected");
  require<InputError>(problems.empty(), path.string(), ": must fit the model", optimizer ? " and the optimizer" : "", ": ", problems);
  for (const auto& [name, view] : copy.views)
    if (view.bytes() > 0) std::memcpy(view.data, tensors.at(name).view().data, view.bytes());
  copy.write_back();
  if (optimizer) optimizer->set_updates(state.step);
}

void write_checkpoint(const std::filesystem::path& path, const Json& recipe, const TrainingState& state, const ParameterPack& pack,
                      const Optimizer* optimizer) {
  Json values;
  each_field(state, [&](const char* name, const auto& value) { values[name] = value; });
  const Json description = {{"format", kFormat}, {"recipe", recipe}, {"state", values}};
  write_safetensors(path, HostCopy(pack, optimizer).views, {{"format", "pt"}, {kMetadataKey, description.dump()}});
}

std::optional<Checkpoint> checkpoint_in(SafetensorsFile file, const std::filesystem::path& path) {
  const auto text = file.metadata.find(kMetadataKey);
  if (text == file.metadata.end()) return std::nullopt;
  Checkpoint checkpoint{.path = path, .tensors = std::move(file.tensors)};
  try {
    const auto description = parse_json<Json>(text->second, path.string() + ": the metadata '" + kMetadataKey + "'");
    require<InputError>(description.at("format") == kFormat, path.string(), ": this program reads checkpoints of format ", kFormat, ", got ",
                        description.at("format"));
    checkpoint.recipe = description.at("recipe");
    const Json& values = description.at("state");
    each_field(checkpoint.state, [&]<class T>(const char* name, T& value) {
      require<InputError>(values.at(name).is_number(), path.string(), ": '", name, "' in the metadata must be a number, got ", values.at(name));
      value = values.at(name).get<T>();
    });
  } catch (const Json::exception& e) {
    throw InputError(cat(path.string(), ": the metadata '", kMetadataKey, "' is malformed: ", json_problem(e)));
  }
  return checkpoint;
}

Checkpoint read_checkpoint(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  const fs::path run = is_folder ? path : path.parent_path(), best = run / "best.safetensors", last = run / "last.safetensors";
  const bool has_last = fs::exists(last, error);
  require<InputError>(!is_folder, path.string(), ": is a folder, a checkpoint is a file ",
                      fs::exists(best, error) ? cat("in it: ", best.string())
                      : has_last              ? cat("in it: ", last.string())
                                              : "that `sinkgrad train` writes, and there is none in it");
  require<IoError>(path != best || !has_last || fs::exists(path, error), path.string(),
                   ": is written after a run's first whole epoch, this one has not had any; there is ", last.string());
  std::optional<Checkpoint> checkpoint = checkpoint_in(read_safetensors(path), path);
  require<InputError>(checkpoint.has_value(), path.string(), ": is no checkpoint of sinkgrad: its metadata has no '", kMetadataKey, "'");
  return *std::move(checkpoint);
}

}  // namespace sinkgrad
