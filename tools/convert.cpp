// `sinkgrad convert`: arrays between safetensors and .npz, and weights between the parameter names of frameworks.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "core/npy.h"
#include "models/parameter_names.h"
#include "tools/commands.h"
#include "tools/experiment.h"

namespace sinkgrad {
namespace {

namespace fs = std::filesystem;

struct ConvertCommand {
  std::string in, out, from, to, recipe, prefix;
  std::vector<std::string> settings;
};

bool is_npz(const fs::path& path) {
  require<InputError>(path.extension() == ".npz" || path.extension() == ".safetensors", path.string(), ": a name must end in .npz or .safetensors");
  return path.extension() == ".npz";
}

void write(const fs::path& path, const Weights& tensors, const std::map<std::string, std::string>& metadata) {
  if (is_npz(path)) {
    write_npz(path, std::vector<std::pair<std::string, Tensor>>(tensors.begin(), tensors.end()));
  } else {
    std::vector<NamedView> views;
    for (const auto& [name, tensor] : tensors) views.push_back({name, tensor.view()});
    write_safetensors(path, views, metadata);
  }
}

/// The tensors whose names begin with `prefix`, without it.
Weights part_of(const Weights& tensors, const std::string& prefix, const std::string& path) {
  Weights part;
  for (const auto& [name, tensor] : tensors)
    if (name.starts_with(prefix)) part.emplace(name.substr(prefix.size()), tensor);
  require<InputError>(!part.empty(), path, ": no name begins with '", prefix, "'");
  return part;
}

/// The model for the items of its data; where they are missing, for those that they should hold.
std::unique_ptr<Model> model_of(const Recipe& recipe) {
  try {
    const DataSplits data = open_data(recipe);
    return open_model(recipe, data.train->item_shape(), data.train->classes());
  } catch (const IoError& error) {
    const ItemSpec items = data_item(recipe);
    fmt::print(stderr, "note   the model is made for items {} in {} classes, the data is not available: {}\n", items.shape.str(), items.classes,
               error.what());
    return open_model(recipe, items.shape, items.classes);
  }
}

/// A checkpoint's weights under the model's own names, with what the authors keep beside them.
Weights weights_of(const Checkpoint& checkpoint, const Recipe& recipe, Naming to) {
  Weights weights = part_of(checkpoint.tensors, "model.", checkpoint.path.string());
  if (to == Naming::authors) {
    const ItemSpec items = data_item(recipe);
    weights.merge(constants_of(*open_model(recipe, items.shape, items.classes)));
  }
  return weights;
}

void write_model(const ConvertCommand& command, const Weights& given, std::optional<Naming> from) {
  require<InputError>(!is_npz(command.out), command.out, ": --recipe makes a checkpoint, whose name must end in .safetensors");
  Recipe recipe = load_recipe(command.recipe, command.settings);
  complete(recipe);
  const Naming own = own_naming(recipe.model["name"]);
  Weights weights = renamed(given, from.value_or(own), own, command.in);
  const auto model = model_of(recipe);
  remove_constants(weights, *model, command.in);
  Checkpoint checkpoint{.path = command.in};
  for (const auto& [name, tensor] : weights) checkpoint.tensors.emplace("model." + name, tensor);
  const ParameterPack pack(*model, DType::f32, recipe.seed);
  checkpoint.restore(pack);
  write_checkpoint(command.out, recipe.to_json(), {.seed = recipe.seed}, pack);
  fmt::print("{}: checkpoint of {} parameters, not trained further\n", command.out, model->parameter_count());
}

void convert(const ConvertCommand& command) {
  is_npz(command.out);  // before anything is read
  SafetensorsFile file = is_npz(command.in) ? SafetensorsFile{read_npz(command.in), {}} : read_safetensors(command.in);
  if (!command.prefix.empty()) file = {part_of(file.tensors, command.prefix, command.in), {}};
  std::optional<Naming> from, to;
  if (!command.from.empty()) from = naming_called(command.from);
  if (!command.to.empty()) to = naming_called(command.to);

  if (from || to || !command.recipe.empty())
    if (const auto checkpoint = checkpoint_in(file, command.in)) {
      require<InputError>(!from, command.in, ": is a checkpoint, whose names are known; --from is for weights from elsewhere");
      const Recipe recipe = recipe_of(*checkpoint);
      from = own_naming(recipe.model["name"]);
      file = {weights_of(*checkpoint, recipe, to.value_or(Naming::fairseq)), {}};
    }
  if (!command.recipe.empty()) return write_model(command, file.tensors, from);
  if (to) {
    require<InputError>(from.has_value(), command.in, ": is no checkpoint; --to requires --from, which says whose names it has");
    file = {renamed(file.tensors, *from, *to, command.in), {{"format", "pt"}}};
  } else {
    require<InputError>(!from, "convert: --from requires --to or --recipe");
  }
  write(command.out, file.tensors, file.metadata);
  fmt::print("{}: {} tensors\n", command.out, file.tensors.size());
}

}  // namespace

void add_convert(CLI::App& app) {
  const auto options = std::make_shared<ConvertCommand>();
  CLI::App* command = app.add_subcommand("convert", "Weights from and to other frameworks, arrays between safetensors and .npz");
  command->footer(
      "Values keep their bits, half precision is read as f32; .npz has no room for metadata. docs/formats.md has the names of each framework.\n"
      "Example: sinkgrad convert weights.npz vit.safetensors --from authors --recipe cats_dogs_vit\n"
      "         sinkgrad convert runs/number_words_small/best.safetensors weights.npz --to torch");
  command->add_option("in", options->in, "a .safetensors or .npz file, or a checkpoint")->required();
  command->add_option("out", options->out, "a .safetensors or .npz file, which is replaced")->required();
  const CLI::IsMember names({"authors", "torch", "fairseq"});
  command->add_option("--from", options->from, "whose parameter names the file has")->check(names);
  CLI::Option* to =
      command->add_option("--to", options->to, "whose parameter names are written; of a checkpoint the model's weights only")->check(names);
  CLI::Option* recipe =
      command->add_option("--recipe", options->recipe, "make a checkpoint of this recipe's model, for eval, inspect and train --init")->excludes(to);
  command->add_option("--set", options->settings, "KEY=VALUE, changes one setting of the recipe; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false)
      ->needs(recipe);
  command->add_option("--prefix", options->prefix, "take only tensors whose names begin with this, and leave it out");
  command->callback([options] { convert(*options); });
}

}  // namespace sinkgrad
