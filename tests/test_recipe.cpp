// Recipes: every key typed, every mistake named with its file and key.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>

#include "core/check.h"
#include "core/file.h"
#include "temporary_folder.h"
#include "tools/ui/recipe.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;

namespace {

/// A folder of recipes that SINKGRAD_RECIPES names; gone with the object.
struct RecipeFolder : TemporaryFolder {
  RecipeFolder() {
    ::setenv("SINKGRAD_RECIPES", path.c_str(), 1);
    add("mnist-small", R"({"model": {"name": "vit", "depth": 2}, "data": {"name": "mnist"}})");
  }
  ~RecipeFolder() { ::unsetenv("SINKGRAD_RECIPES"); }
  void add(const std::string& name, const std::string& text) const { write_file(path / (name + ".json"), text); }
};

/// The message of loading a recipe with these extra keys.
std::string message(const RecipeFolder& folder, const std::string& extra) {
  folder.add("broken", R"({"model": {"name": "vit"}, "data": {"name": "mnist"}, )" + extra + "}");
  try {
    load_recipe("broken");
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

std::string message_of_set(const std::string& assignment) {
  try {
    load_recipe("mnist-small", {assignment});
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("a recipe needs model and data only, the rest has defaults") {
  const RecipeFolder folder;
  const Recipe recipe = load_recipe("mnist-small");
  CHECK(recipe.name == "mnist-small");
  CHECK(recipe.model == nlohmann::json{{"name", "vit"}, {"depth", 2}});
  CHECK(recipe.optimizer.name == "adam");
  CHECK(recipe.optimizer.betas == std::vector<double>{0.9, 0.999});
  CHECK(recipe.schedule.milestones.empty());
  CHECK(load_recipe((folder.path / "mnist-small.json").string()).name == "mnist-small");
  for (const char* text : {R"({"data": {"name": "mnist"}})", R"({"model": {"depth": 2}, "data": {"name": "mnist"}})",
                           R"({"model": {"name": 3}, "data": {"name": "mnist"}})"}) {
    folder.add("broken", text);
    CHECK_THROWS_WITH(load_recipe("broken"), Contains("broken.json: 'model' requires an object with a string \"name\""));
  }
}

TEST_CASE("the effective configuration is a recipe that gives itself") {
  const RecipeFolder folder;
  const Recipe recipe =
      load_recipe("mnist-small", {"seed=18446744073709551615", "optimizer.lr=0.1", "schedule.milestones=[35,41]", "description=a \"quoted\" text"});
  folder.add("again", recipe.to_json().dump());
  CHECK(load_recipe("again").to_json() == recipe.to_json());
  CHECK(load_recipe("again").seed == 18446744073709551615u);
  CHECK(recipe.to_json().begin().key() == "name");
}

TEST_CASE("set is typed by the schema") {
  const RecipeFolder folder;
  const Recipe recipe = load_recipe("mnist-small", {"optimizer.lr=1", "optimizer.name=sgd", "optimizer.decay_all=true", "optimizer.betas=[0.5, 0]",
                                                    "epochs=3", "name=7", "description=", "model.depth=4", "model.mask=null", "model.name=123",
                                                    "model.attention.kind=sinkhorn", "data.augment={\"flip\": true}", "data.augment.shift=0.5"});
  CHECK(recipe.optimizer.lr == 1.0);
  CHECK(recipe.optimizer.name == "sgd");
  CHECK(recipe.optimizer.decay_all);
  CHECK(recipe.optimizer.betas == std::vector<double>{0.5, 0});
  CHECK(recipe.epochs == 3);
  CHECK(recipe.name == "7");
  CHECK(recipe.model == nlohmann::json::parse(R"({"name": "123", "depth": 4, "mask": null, "attention": {"kind": "sinkhorn"}})"));
  CHECK(recipe.data == nlohmann::json::parse(R"({"name": "mnist", "augment": {"flip": true, "shift": 0.5}})"));
}

TEST_CASE("mistakes in --set are named") {
  const RecipeFolder folder;
  CHECK_THAT(message_of_set("optimizer.lr=fast"), Contains("--set optimizer.lr=fast: 'optimizer.lr' requires a number, got \"fast\""));
  CHECK_THAT(message_of_set("optimizer.lr=true"), Contains("requires a number, got true"));
  CHECK_THAT(message_of_set("epochs=1.5"), Contains("'epochs' requires an integer, got 1.5"));
  CHECK_THAT(message_of_set("epochs=0"), Contains("'epochs' requires a number >= 1, got 0"));
  CHECK_THAT(message_of_set("epochs=9223372036854775808"), Contains("'epochs' requires an integer"));
  CHECK_THAT(message_of_set("precision=f16"), Contains("'precision' requires"));
  CHECK_THAT(message_of_set("seed=-1"), Contains("'seed' requires an integer in [0, 2^64), got -1"));
  CHECK_THAT(message_of_set("optimizer.decay_all=yes"), Contains("requires true or false, got \"yes\""));
  CHECK_THAT(message_of_set("optimizer.betas=0.9"), Contains("requires a list of 2 numbers, got 0.9"));
  CHECK_THAT(message_of_set("optimizer.betas=[0.9,1]"), Contains("'optimizer.betas[1]' requires a number in [0, 1), got 1"));
  CHECK_THAT(message_of_set("schedule.milestones=[1,2.5]"), Contains("'schedule.milestones[1]' requires an integer, got 2.5"));
  CHECK_THAT(message_of_set("optimizer.name=adm"), Contains("requires one of adam, adamw, sgd, got \"adm\"; did you mean 'adam'?"));
  CHECK_THAT(message_of_set("optimizer=adam"), Contains("'optimizer' requires an object, got \"adam\""));
  CHECK_THAT(message_of_set("optimizer.lrr=1"), Contains("unknown key 'optimizer.lrr'; did you mean 'optimizer.lr'?"));
  CHECK_THAT(message_of_set("lr=1"), Contains("did you mean 'optimizer.lr'?"));
  CHECK_THAT(message_of_set("depth=1"), Contains("did you mean 'model.depth'?"));
  CHECK_THAT(message_of_set("model.depth.x=1"), Contains("'depth' is 2, it has no key 'x'"));
  CHECK_THAT(message_of_set("model=vit"), Contains("'model' requires an object"));
  for (const char* text : {"epochs", "=3", "optimizer..lr=1", ".=1", "a.=1"})
    CHECK_THAT(message_of_set(text), Contains(std::string("--set ") + text));
}

TEST_CASE("mistakes in a file are named with its path") {
  const RecipeFolder folder;
  CHECK_THAT(message(folder, R"("optimiser": {})"), Contains("broken.json: unknown key 'optimiser'; did you mean 'optimizer'?"));
  CHECK_THAT(message(folder, R"("batch_size": "64")"), Contains("'batch_size' requires an integer, got \"64\""));
  CHECK_THAT(message(folder, R"("epochs": 1, "epochs": 2)"), Contains("\"epochs\" occurs twice"));
  CHECK_THAT(message(folder, R"("optimizer": {"lr": 1e999})"), Contains("broken.json: "));
  CHECK_THAT(message(folder, "\n\"epochs\" 3"), Contains("broken.json: must be JSON: line 2, column"));
  CHECK_THAT(message(folder, R"("\u001b[2J\n": 1)"), Contains("unknown key '\\x1b[2J\\x0a'"));
  CHECK(message(folder, "\"" + std::string(1 << 19, 'x') + "\": 1").size() < 1000);
  folder.add("broken", "[1]");
  CHECK_THROWS_WITH(load_recipe("broken"), Contains("the recipe requires an object, got [1]"));
  CHECK_THROWS_AS(load_recipe((folder.path / "absent.json").string()), IoError);
}

TEST_CASE("no recipe is deep or long enough to end the program") {
  const RecipeFolder folder;
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  CHECK_THAT(message(folder, "\"seed\": " + deep), Contains("broken.json: JSON must be nested at most 64 deep"));
  CHECK_THAT(message_of_set("seed=" + deep), Contains("'seed' requires an integer") && Contains("..."));
  CHECK_THAT(message(folder, "\"seed\": \"" + std::string(900'000, 'x') + "\x01"), Contains("broken.json: must be JSON: line 1, column 90"));
}

TEST_CASE("an unknown recipe is answered by the nearest one and the list") {
  const RecipeFolder folder;
  folder.add("imdb", "{}");
  CHECK(recipe_names() == std::vector<std::string>{"imdb", "mnist-small"});
  CHECK_THROWS_WITH(load_recipe("mnist-smal"), Contains("unknown recipe 'mnist-smal'; did you mean 'mnist-small'?") && Contains("imdb, mnist-small"));
}
