// each_field lists the keys of a section once: reading, --set, printing and the list of known keys all visit it.
#include "tools/ui/recipe.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "core/check.h"
#include "core/file.h"
#include "core/json.h"
#include "core/names.h"
#include "datasets/text_file.h"

namespace sinkgrad {
namespace {

using Json = nlohmann::json;

/// What a value must satisfy beyond its type: low <= number < below, the length of a list, one of some names.
struct Rule {
  double low = -std::numeric_limits<double>::infinity(), below = std::numeric_limits<double>::infinity();
  size_t length = 0;  // of a list; 0 = any
  std::vector<std::string> choices{};
};
Rule at_least(double low) { return {.low = low}; }
Rule fraction(size_t length = 0) { return {.low = 0, .below = 1, .length = length}; }
Rule one_of(std::vector<std::string> choices) { return {.choices = std::move(choices)}; }

template <class Visit>
void each_field(OptimizerRecipe& optimizer, Visit&& visit) {
  visit("name", optimizer.name, one_of({"adam", "adamw", "sgd"}));
  visit("lr", optimizer.lr, at_least(0));
  visit("betas", optimizer.betas, fraction(2));
  visit("eps", optimizer.eps, at_least(0));
  visit("weight_decay", optimizer.weight_decay, at_least(0));
  visit("momentum", optimizer.momentum, fraction());
  visit("form", optimizer.form, one_of({"torch", "fairseq"}));
  visit("decay_all", optimizer.decay_all, Rule());
  visit("clip_norm", optimizer.clip_norm, at_least(0));
}

template <class Visit>
void each_field(ScheduleRecipe& schedule, Visit&& visit) {
  visit("name", schedule.name, one_of({"constant", "step", "cosine", "inverse_sqrt"}));
  visit("warmup", schedule.warmup, at_least(0));
  visit("warmup_lr", schedule.warmup_lr, at_least(0));
  visit("milestones", schedule.milestones, at_least(0));
  visit("gamma", schedule.gamma, at_least(0));
  visit("min_lr", schedule.min_lr, at_least(0));
}

template <class Visit>
void each_field(LossRecipe& loss, Visit&& visit) {
  visit("label_smoothing", loss.label_smoothing, fraction());
  visit("form", loss.form, one_of({"torch", "fairseq"}));
}

template <class Visit>
void each_field(Recipe& recipe, Visit&& visit) {
  visit("name", recipe.name, Rule());
  visit("description", recipe.description, Rule());
  visit("model", recipe.model, Rule());
  visit("data", recipe.data, Rule());
  visit("optimizer", recipe.optimizer, Rule());
  visit("schedule", recipe.schedule, Rule());
  visit("loss", recipe.loss, Rule());
  visit("epochs", recipe.epochs, at_least(1));
  visit("batch_size", recipe.batch_size, at_least(1));
  visit("eval_batch_size", recipe.eval_batch_size, at_least(1));
  visit("seed", recipe.seed, Rule());
  visit("precision", recipe.precision, one_of({"f32", "tf32", "bf16"}));
  visit("checkpoint_every", recipe.checkpoint_every, at_least(0));
}

/// A part of the recipe with keys of its own, as opposed to a value.
template <class T>
concept Section = std::is_same_v<T, OptimizerRecipe> || std::is_same_v<T, ScheduleRecipe> || std::is_same_v<T, LossRecipe>;

std::string join(const std::vector<std::string>& parts, const char* separator) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : separator) + part;
  return text;
}

std::string child(const std::string& path, const std::string& key) { return path.empty() ? key : path + "." + key; }

std::string leaf(const std::string& path) { return path.substr(path.rfind('.') + 1); }

void collect_paths(const nlohmann::ordered_json& section, const std::string& path, std::vector<std::string>& paths) {
  for (const auto& [key, value] : section.items()) {
    paths.push_back(child(path, key));
    if (value.is_object()) collect_paths(value, child(path, key), paths);
  }
}

/// The known path with the same last part, so that lr=1 finds optimizer.lr; else the nearest one.
std::string suggestion(const std::string& unknown) {
  std::vector<std::string> paths;
  collect_paths(Recipe().to_json(), "", paths);
  for (const std::string& path : paths)
    if (leaf(path) == leaf(unknown)) return "; did you mean '" + path + "'?";
  return did_you_mean(unknown, paths);
}

/// A value in an error message.
std::string shown(const Json& value) { return printable(value.dump(-1, ' ', false, Json::error_handler_t::replace)); }

/// Fills the fields of a section from a JSON object. `source` begins every error message.
class SectionReader {
 public:
  SectionReader(const std::string& source, const std::string& path, const Json& object) : source_(source), path_(path), object_(object) {
    if (!object.is_object()) fail(path.empty() ? "the recipe" : "'" + path + "'", "an object", object);
  }

  template <class T>
  void operator()(const char* key, T& value, const Rule& rule) {
    known_.push_back(key);
    if (const auto found = object_.find(key); found != object_.end()) read(child(path_, key), *found, value, rule);
  }

  void refuse_unknown_keys() const {
    for (const auto& [key, value] : object_.items()) {
      const std::string path = child(path_, key);
      require<InputError>(std::count(known_.begin(), known_.end(), key) > 0, source_, ": unknown key '", printable(path), "'", suggestion(path));
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what, const std::string& required, const Json& got) const {
    throw InputError(cat(source_, ": ", what, " requires ", required, ", got ", shown(got)));
  }
  void check(bool ok, const std::string& path, const std::string& required, const Json& got) const {
    if (!ok) fail("'" + path + "'", required, got);
  }
  void check_range(const std::string& path, double value, const Rule& rule, const Json& got) const {
    const bool bounded = std::isfinite(rule.below);
    check(value >= rule.low && value < rule.below, path,
          bounded ? cat("a number in [", rule.low, ", ", rule.below, ")") : cat("a number >= ", rule.low), got);
  }

  void read(const std::string& path, const Json& json, std::string& value, const Rule& rule) const {
    check(json.is_string(), path, "a string", json);
    value = json.get<std::string>();
    const bool known = rule.choices.empty() || std::count(rule.choices.begin(), rule.choices.end(), value) > 0;
    require<InputError>(known, source_, ": '", path, "' requires one of ", join(rule.choices, ", "), ", got ", shown(json),
                        did_you_mean(value, rule.choices));
  }
  void read(const std::string& path, const Json& json, double& value, const Rule& rule) const {
    check(json.is_number(), path, "a number", json);
    value = json.get<double>();
    check_range(path, value, rule, json);
  }
  void read(const std::string& path, const Json& json, int64_t& value, const Rule& rule) const {
    // Larger unsigned numbers would wrap around.
    const bool fits = !json.is_number_unsigned() || json.get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()};
    check(json.is_number_integer() && fits, path, "an integer", json);
    value = json.get<int64_t>();
    check_range(path, static_cast<double>(value), rule, json);
  }
  void read(const std::string& path, const Json& json, uint64_t& value, const Rule&) const {
    check(json.is_number_unsigned(), path, "an integer in [0, 2^64)", json);
    value = json.get<uint64_t>();
  }
  void read(const std::string& path, const Json& json, bool& value, const Rule&) const {
    check(json.is_boolean(), path, "true or false", json);
    value = json.get<bool>();
  }
  template <class T>
  void read(const std::string& path, const Json& json, std::vector<T>& list, const Rule& rule) const {
    const char* type = std::is_integral_v<T> ? "integers" : "numbers";
    check(json.is_array() && (rule.length == 0 || json.size() == rule.length), path,
          rule.length ? cat("a list of ", rule.length, " ", type) : cat("a list of ", type), json);
    list.resize(json.size());
    for (size_t i = 0; i < list.size(); ++i) read(cat(path, "[", i, "]"), json[i], list[i], rule);
  }
  void read(const std::string& path, const Json& json, Json& options, const Rule&) const {
    check(json.is_object(), path, "an object with a \"name\"", json);
    options = json;
  }
  template <Section T>
  void read(const std::string& path, const Json& json, T& section, const Rule&) const {
    SectionReader reader(source_, path, json);
    each_field(section, reader);
    reader.refuse_unknown_keys();
  }

  const std::string& source_;
  std::string path_;
  const Json& object_;
  std::vector<std::string> known_;
};

void merge(Recipe& recipe, const Json& json, const std::string& source) {
  SectionReader reader(source, "", json);
  each_field(recipe, reader);
  reader.refuse_unknown_keys();
}

template <class Part>
nlohmann::ordered_json as_json(Part& part) {
  auto json = nlohmann::ordered_json::object();
  each_field(part, [&]<class T>(const char* key, T& value, const Rule&) {
    if constexpr (Section<T>) {
      json[key] = as_json(value);
    } else {
      json[key] = value;
    }
  });
  return json;
}

/// The value of --set: JSON where it is some, otherwise (text without quotes) a string.
Json override_value(const std::string& text, bool wants_string) {
  try {
    Json value = parse_json(text, "--set");
    return wants_string && !value.is_string() ? Json(text) : value;
  } catch (const InputError&) {
    return text;
  }
}

bool is_string_field(const std::vector<std::string>& keys) {
  nlohmann::ordered_json field = Recipe().to_json();
  for (const std::string& key : keys)
    field = nlohmann::ordered_json(field.is_object() ? field.value(key, nlohmann::ordered_json()) : nlohmann::ordered_json());
  return field.is_string();
}

std::filesystem::path find_recipe(const std::string& name_or_path) {
  const std::vector<std::string> names = recipe_names();
  if (std::count(names.begin(), names.end(), name_or_path) > 0) return recipe_folder() / (name_or_path + ".json");
  const bool is_path = name_or_path.find('/') != std::string::npos || name_or_path.ends_with(".json");
  if (is_path || std::filesystem::is_regular_file(name_or_path)) return name_or_path;
  const std::string known = names.empty() ? "there are none in " + recipe_folder().string() : "the recipes are " + join(names, ", ");
  throw InputError(cat("unknown recipe '", name_or_path, "'", did_you_mean(name_or_path, names), "; ", known, "; a path is also accepted"));
}

}  // namespace

void Recipe::set(const std::string& assignment) {
  const std::string source = "--set " + printable(assignment);
  require_utf8(assignment, source);
  const size_t equals = assignment.find('=');
  require<InputError>(equals != std::string::npos && equals > 0, source, ": requires key=value, such as optimizer.lr=0.01");
  const std::string path = assignment.substr(0, equals), text = assignment.substr(equals + 1);
  std::vector<std::string> keys;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    keys.push_back(path.substr(begin, end - begin));
    require<InputError>(!keys.back().empty(), source, ": the key '", printable(path), "' has an empty part");
    begin = end + 1;
  }
  Json* options = keys.size() < 2 ? nullptr : keys[0] == "model" ? &model : keys[0] == "data" ? &data : nullptr;
  if (!options) {
    Json nested = override_value(text, is_string_field(keys));
    for (size_t i = keys.size(); i-- > 0;) nested = Json::object({{keys[i], nested}});
    if (keys.size() == 1 && (model.contains(path) || data.contains(path)) && !to_json().contains(path))
      throw InputError(
          cat(source, ": unknown key '", printable(path), "'; did you mean '", model.contains(path) ? "model." : "data.", printable(path), "'?"));
    merge(*this, nested, source);
    return;
  }
  for (size_t i = 1; i < keys.size(); ++i) {
    const bool is_object = options->is_object() || options->is_null();
    require<InputError>(is_object, source, ": '", printable(keys[i - 1]), "' is ", shown(*options), ", it has no key '", printable(keys[i]), "'");
    options = &(*options)[keys[i]];
  }
  *options = override_value(text, options->is_string() || path == "model.name" || path == "data.name");
}

nlohmann::ordered_json Recipe::to_json() const {
  Recipe copy = *this;
  return as_json(copy);
}

Recipe load_recipe(const std::string& name_or_path, const std::vector<std::string>& overrides) {
  constexpr uint64_t kMaxBytes = 1 << 20;
  const std::filesystem::path path = find_recipe(name_or_path);
  Recipe recipe;
  recipe.name = path.stem().string();
  merge(recipe, parse_json(read_file(path, kMaxBytes), path.string()), path.string());
  for (const std::string& assignment : overrides) recipe.set(assignment);
  for (const auto& [key, section] : {std::pair("model", &recipe.model), std::pair("data", &recipe.data)})
    require<InputError>(section->contains("name") && (*section)["name"].is_string(), path.string(), ": '", key,
                        "' requires an object with a string \"name\", got ", shown(*section));
  return recipe;
}

std::filesystem::path recipe_folder() {
  const char* folder = std::getenv("SINKGRAD_RECIPES");
  if (folder && *folder) return folder;
  std::error_code none;  // installed, they lie beside the program
  const std::filesystem::path installed =
      std::filesystem::read_symlink("/proc/self/exe", none).parent_path().parent_path() / "share/sinkgrad/recipes";
  return std::filesystem::is_directory(installed, none) ? installed : SINKGRAD_RECIPES;
}

std::vector<std::string> recipe_names() {
  std::vector<std::string> names;
  std::error_code none;
  for (std::filesystem::directory_iterator it(recipe_folder(), none), end; !none && it != end; it.increment(none))
    if (it->path().extension() == ".json") names.push_back(it->path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace sinkgrad
