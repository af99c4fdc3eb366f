// The paper's recipes for vision and point clouds: sizes of the models without any data, and two updates on tiny sets in the original
// formats. Also `sinkgrad data`.
#include <sys/wait.h>

#include <catch2/catch.hpp>

#include "datasets/registry.h"
#include "models/registry.h"
#include "tiny_data.h"
#include "tools/ui/metrics.h"
#include "tools/ui/recipe.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;

namespace {

struct Result {
  int code;
  std::string out, err;
};

Result run(const std::string& arguments, const std::string& setting = "") {
  const tiny::Folder folder;
  const std::string out = folder.path / "out", err = folder.path / "err";
  const int status = std::system((setting + " '" SINKGRAD_PROGRAM "' " + arguments + " >" + out + " 2>" + err + " </dev/null").c_str());
  REQUIRE(WIFEXITED(status));
  return {WEXITSTATUS(status), read_file(out, 1 << 24), read_file(err, 1 << 24)};
}

int64_t parameters(const std::string& recipe_name, const std::vector<std::string>& settings = {}) {
  const Recipe recipe = load_recipe(recipe_name, settings);
  nlohmann::json options = recipe.data;
  options.erase("name");
  const ItemSpec item = dataset_item(recipe.data.at("name"), options);
  return make_model(recipe.model, item.shape, item.classes)->parameter_count();
}

/// Two updates of a recipe on data in `folder`, and the test afterwards.
void two_updates(const std::string& recipe, const tiny::Folder& folder, const std::string& more = "") {
  CAPTURE(recipe);
  const tiny::fs::path out = folder.path / ("run_" + recipe);
  const Result r =
      run("train " + recipe + " --max-steps 2 --log-every 1 --set data.folder=" + folder.path.string() + " --out " + out.string() + more);
  INFO(r.err);
  REQUIRE(r.code == 0);
  CHECK_THAT(r.out, Contains("2 updates"));
  int updates = 0;
  for (const MetricsRow& row : read_metrics(out / "metrics.jsonl").rows) updates += row.split == "train";
  CHECK(updates == 2);
}

}  // namespace

TEST_CASE("the paper's models have the authors' sizes, told without their data") {
  ::setenv("SINKGRAD_DATA", "/nonexistent", 1);
  for (const char* recipe : {"modelnet_set", "modelnet_set_released"}) CHECK(parameters(recipe) == 1'145'384);
  for (const char* recipe : {"modelnet_pct", "modelnet_pct_upstream"}) CHECK(parameters(recipe) == 2'876'136);
  CHECK(parameters("modelnet_pct", {"model.iterations=5"}) == 2'876'136);
  for (const char* recipe : {"cats_dogs_vit", "cats_dogs_vit_released"}) CHECK(parameters(recipe) == 1'899'138);
  for (const auto& [patch, count] : {std::pair(1, 168'842), {2, 93'962}, {4, 76'682}, {7, 76'682}, {14, 93'962}, {28, 168'842}})
    CHECK(parameters("mnist_patch", {"model.patch=" + std::to_string(patch)}) == count);
  ::unsetenv("SINKGRAD_DATA");
  const Result info = run("info modelnet_pct", "SINKGRAD_DATA=/nonexistent");
  CHECK_THAT(info.out, Contains("2,876,136") && Contains("pt_last.sa4.after_norm.running_var") && Contains("for items (1024,3) in 40 classes"));
  CHECK_THAT(run("info mnist_patch --set model.patch=28").out, Contains("168,842"));
}

TEST_CASE("what a dataset says of its items without data is what it has") {
  const std::vector<std::string> synthetic = {"shapes", "digits", "silhouettes"};
  for (const std::string& name : synthetic) {
    const DataSplits data = make_dataset(name, {{"train", 20}, {"test", 20}});
    const ItemSpec item = dataset_item(name, {});
    CHECK(item.shape == data.train->item_shape());
    CHECK(item.classes == data.train->classes());
  }
  const tiny::Folder folder;
  tiny::write_cats_dogs(folder.path, 5);
  const nlohmann::json options = {{"folder", folder.path.string()}, {"size", 24}};
  const DataSplits data = make_dataset("cats-dogs", options);
  CHECK(dataset_item("cats-dogs", options).shape == data.train->item_shape());
  CHECK(dataset_item("cats-dogs", options).classes == data.train->classes());
}

TEST_CASE("ModelNet40 as OFF meshes: two updates of the Set model's recipes") {
  const tiny::Folder folder;
  tiny::write_modelnet(folder.path, {"airplane", "bathtub"}, 3, 1);
  two_updates("modelnet_set", folder);
  two_updates("modelnet_set_released", folder, " --set model.iterations=21");
}

TEST_CASE("ModelNet40 as one HDF5 file: two updates of the Set Sinkformer") {
  const tiny::Folder folder;
  for (const auto& [split, count] : {std::pair("tr", 4), std::pair("test", 2)}) {
    tiny::write_h5(folder.path / "ModelNet40_cloud.h5", std::string(split) + "_cloud", {count, 10'000, 3},
                   tiny::clouds<double>(count, 10'000, split));
    tiny::write_h5(folder.path / "ModelNet40_cloud.h5", std::string(split) + "_label", {count}, std::vector<int32_t>(static_cast<size_t>(count), 39));
  }
  two_updates("modelnet_set", folder, " --set model.iterations=5");
}

TEST_CASE("ModelNet40 as 2,048 points: two updates of the PCT, upstream's and Sinkhorn's attention") {
  const tiny::Folder folder;
  for (const auto& [file, count] : {std::pair("train0", 3), std::pair("test0", 1)}) {
    const tiny::fs::path path = folder.path / ("ply_data_" + std::string(file) + ".h5");
    tiny::write_h5(path, "data", {count, 2048, 3}, tiny::clouds<float>(count, 2048, file));
    tiny::write_h5(path, "label", {count, 1}, std::vector<uint8_t>(static_cast<size_t>(count), 12));
  }
  two_updates("modelnet_pct", folder);
  two_updates("modelnet_pct_upstream", folder, " --set model.iterations=3");
}

TEST_CASE("cats and dogs as JPEG files: two updates of the ViT") {
  const tiny::Folder folder;
  tiny::write_cats_dogs(folder.path, 5);
  two_updates("cats_dogs_vit", folder);
  two_updates("cats_dogs_vit_released", folder, " --set model.iterations=3");
}

TEST_CASE("MNIST as idx files: two updates of the patch study") {
  const tiny::Folder folder;
  tiny::write_mnist(folder.path, 20);
  two_updates("mnist_patch", folder);
}

TEST_CASE("data says what is needed, checks what is there, and fetches what is not") {
  const Result list = run("data");
  CHECK(list.code == 0);
  for (const std::string& name : dataset_names()) CHECK_THAT(list.out, Contains(name));
  const tiny::Folder folder;
  const Result absent = run("data mnist --set folder=" + folder.path.string());
  CHECK(absent.code == 5);
  CHECK_THAT(absent.out,
             Contains(folder.path.string()) && Contains("train-images-idx3-ubyte.gz, md5 f68b3c2dcbeaaa9fbdd348bbdeb94873") && Contains("absent"));
  CHECK_THAT(absent.err, Contains("lacks train-images-idx3-ubyte"));
  tiny::write_mnist(folder.path, 10);
  CHECK_THAT(run("data mnist --set folder=" + folder.path.string()).out, Contains("mnist train: 10 images (1,28,28)"));
  CHECK(run("data mnist --set folder=" + folder.path.string()).code == 0);
  tiny::write(folder.path / "t10k-labels-idx1-ubyte.gz", "changed");
  const Result changed = run("data mnist --set folder=" + folder.path.string());
  CHECK(changed.code == 1);
  CHECK_THAT(changed.out, Contains("t10k-labels-idx1-ubyte.gz") &&
                              Contains("its md5 must be ec29112dd5afa0611ce80d1b7f02629c, got 8977dfac2f8e04cb96e66882235f5aba"));
  CHECK_THAT(run("data shapes").out, Contains("no files") && Contains("4800 clouds"));
  CHECK_THAT(run("data mnits").err, Contains("did you mean 'mnist'?"));
  CHECK_THAT(run("data shapes --set point=3").err, Contains("did you mean 'points'?"));

  // A stand-in for curl on the PATH writes a file that is not as published: nothing of it stays.
  const tiny::Folder programs, target;
  tiny::write(programs.path / "curl", "#!/bin/sh\nwhile [ \"$1\" != --output ]; do shift; done\necho wrong >\"$2\"\n");
  tiny::fs::permissions(programs.path / "curl", tiny::fs::perms::owner_all);
  const std::string path = "PATH='" + programs.path.string() + "':\"$PATH\"";
  const Result wrong = run("data mnist --download --set folder=" + (target.path / "new").string(), path);
  CHECK(wrong.code == 5);
  CHECK_THAT(wrong.err, Contains("its md5 must be f68b3c2dcbeaaa9fbdd348bbdeb94873"));
  CHECK(tiny::fs::is_empty(target.path / "new"));
  tiny::write(programs.path / "curl", "#!/bin/sh\nexit 22\n");
  tiny::fs::permissions(programs.path / "curl", tiny::fs::perms::owner_all);
  CHECK_THAT(run("data mnist --download --set folder=" + target.path.string(), path).err, Contains("curl could not fetch it (exit code 22)"));
}
