// The paper's recipes: sizes of the models without any data, and two updates on tiny sets in the original
// formats. Also `sinkgrad data`.
#include <map>
#include <sstream>

#include "datasets/registry.h"
#include "program.h"
#include "tiny_data.h"
#include "tiny_text.h"
#include "tools/ui/metrics.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;

namespace {

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

TEST_CASE("info tells the sizes of the paper's models without their data, and they are the authors'") {
  const auto told = [](const std::string& recipe) {
    const Result info = run("info " + recipe, "SINKGRAD_DATA=/nonexistent");
    CHECK(info.code == 0);
    const size_t total = info.out.find("\n  total ");
    REQUIRE(total != std::string::npos);
    std::istringstream line(info.out.substr(total));
    std::string word, count;
    line >> word >> count;
    return count;
  };
  const std::map<std::string, std::string> counts = {{"modelnet_set", "1,145,384"},
                                                     {"modelnet_set_released", "1,145,384"},
                                                     {"modelnet_pct", "2,876,136"},
                                                     {"modelnet_pct_upstream", "2,876,136"},
                                                     {"modelnet_pct --set model.iterations=5", "2,876,136"},
                                                     {"imdb", "8,835,074"},
                                                     {"imdb_released", "8,835,074"},
                                                     {"iwslt", "39,469,056"},
                                                     {"cats_dogs_vit", "1,899,138"},
                                                     {"cats_dogs_vit_released", "1,899,138"},
                                                     {"mnist_patch --set model.patch=1", "168,842"},
                                                     {"mnist_patch --set model.patch=2", "93,962"},
                                                     {"mnist_patch --set model.patch=4", "76,682"},
                                                     {"mnist_patch", "76,682"},
                                                     {"mnist_patch --set model.patch=14", "93,962"},
                                                     {"mnist_patch --set model.patch=28", "168,842"}};
  for (const auto& [recipe, count] : counts) {
    CAPTURE(recipe);
    CHECK(told(recipe) == count);
  }
  const Result info = run("info modelnet_pct", "SINKGRAD_DATA=/nonexistent");
  CHECK_THAT(info.out, Contains("pt_last.sa4.after_norm.running_var") && Contains("for items (1024,3) in 40 classes"));
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

TEST_CASE("IMDb as a tree and as an archive: two updates of the encoder") {
  const tiny::Folder folder, packed;
  tiny::write_reviews(folder.path);
  two_updates("imdb", folder, " --set data.vocabulary=40");
  REQUIRE(std::system(("tar -czf '" + packed.path.string() + "/aclImdb_v1.tar.gz' -C '" + folder.path.string() + "' aclImdb").c_str()) == 0);
  two_updates("imdb_released", packed, " --set data.vocabulary=40");
}

TEST_CASE("parallel text, prepared and raw: two updates of the translator") {
  const tiny::Folder prepared, raw;
  tiny::write_parallel(prepared.path, true);
  two_updates("iwslt", prepared);
  tiny::write_parallel(raw.path, false, "val", "test_2016_flickr");
  two_updates("multi30k_small", raw, " --set data.subwords=60 --set model.iterations=3");
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
