// `sinkgrad convert`: formats to the bit, names of other frameworks there and back, the authors' weights as checkpoints that give their outputs.
#include <bit>
#include <regex>

#include "core/npy.h"
#include "core/safetensors.h"
#include "models/parameter_names.h"
#include "models/registry.h"
#include "models/text_encoder.h"
#include "nn/checkpoint.h"
#include "parity.h"
#include "program.h"
#include "tiny_data.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

void write_weights(const fs::path& path, const Weights& weights) {
  std::vector<NamedView> views;
  for (const auto& [name, tensor] : weights) views.push_back({name, tensor.view()});
  write_safetensors(path, views);
}

void check_same(const Weights& a, const Weights& b) {
  CHECK(a.size() == b.size());
  for (const auto& [name, tensor] : a) {
    CAPTURE(name);
    REQUIRE(b.contains(name));
    CHECK(npy_bytes(tensor) == npy_bytes(b.at(name)));  // type, shape and bits
  }
}

/// What begins with `prefix`, without it.
Weights part(const Weights& all, const std::string& prefix) {
  Weights found;
  for (const auto& [name, tensor] : all)
    if (name.starts_with(prefix)) found[name.substr(prefix.size())] = tensor;
  return found;
}

/// The program's arguments are files of one folder, where it runs.
struct Folder : TemporaryFolder {
  Result convert(const std::string& arguments) const { return ::run("convert " + arguments, "cd '" + path.string() + "' &&"); }
  void succeed(const std::string& arguments) const {
    const Result result = convert(arguments);
    CAPTURE(arguments);
    CHECK(std::regex_match(result.err, std::regex("(note   (making|that took) .*\n)*")));  // of what is made of the data
    REQUIRE(result.code == 0);
  }
  Weights read(const std::string& name) const { return read_safetensors(path / name).tensors; }
};

fs::path fixtures() {
  const char* folder = std::getenv("SINKGRAD_FIXTURES");
  return folder ? fs::path(folder) : fs::path(SINKGRAD_SOURCE_DIR) / ".." / "shared" / "fixtures";
}

constexpr const char* kTranslator =
    R"({"model": {"name": "translator", "dim": 16, "encoder_layers": 2, "decoder_layers": 1, "heads": 2, "mlp_dim": 24},
      "data": {"name": "number_words", "train": 60, "valid": 10, "test": 10}, "epochs": 1, "batch_size": 256})";
constexpr const char* kTextEncoder =
    R"({"model": {"name": "text_encoder", "dim": 16, "depth": 2, "heads": 2, "mlp_dim": 24, "iterations": 3},
      "data": {"name": "opinions", "train": 40, "test": 20}, "epochs": 1, "batch_size": 20})";

/// Runs the authors' weights of a file through a checkpoint of `recipe` and compares logits of `input` and, on the way back, bits.
void check_fixture(const Folder& folder, const std::string& name, const std::string& input, const Shape& item, const std::string& recipe) {
  CAPTURE(name);
  const parity::Fixture fixture(fixtures() / name);
  const Weights theirs = part(read_safetensors(fixtures() / name).tensors, "param/");
  write_file(folder / "recipe.json", recipe);
  folder.succeed("'" + (fixtures() / name).string() + "' model.safetensors --from authors --prefix param/ --recipe recipe.json");

  const Checkpoint checkpoint = read_checkpoint(folder / "model.safetensors");
  const auto model = make_model(checkpoint.recipe.at("model"), item, fixture.dim("out/logits", 1));
  ParameterPack pack(*model, DType::f32, 7);
  checkpoint.restore(pack);
  Tape tape;
  tape.set_training(false);
  parity::Comparison comparison(fixture);
  comparison.output("logits", tape.value(model->scores(tape.leaf(fixture.at("in/" + input)), {})));
  INFO(comparison.summary());
  CHECK_THAT(comparison.summary(), !Contains("FAIL"));
  const Result evaluated = ::run("eval " + (folder / "model.safetensors") + " --threads 1");
  INFO(evaluated.err);
  CHECK(evaluated.code == 0);

  folder.succeed("model.safetensors back.safetensors --to authors");
  check_same(folder.read("back.safetensors"), theirs);
  folder.succeed("model.safetensors back.npz --to authors");
  check_same(read_npz(folder / "back.npz"), theirs);
}

}  // namespace

TEST_CASE("the authors' ViT and Set Sinkformers become checkpoints that give their logits, and come back to the bit") {
  if (!fs::is_directory(fixtures())) {
    WARN("skipped: there is no folder " << fixtures() << "; set SINKGRAD_FIXTURES");
    return;
  }
  const Folder folder;
  for (int c = 0; c < 5; ++c)
    for (int i = 0; i < 2; ++i)
      tiny::write(folder.path / "images" / cat(static_cast<char>('a' + c), ".", i, ".jpg"),
                  tiny::jpeg(12, 12, {10, static_cast<uint8_t>(40 * c), 90}));
  for (const int iterations : {1, 3})
    check_fixture(folder, cat("vit_it", iterations, ".safetensors"), "images", {3, 12, 12},
                  cat(R"({"model": {"name": "vit", "patch": 4, "dim": 24, "depth": 2, "heads": 4, "head_dim": 8, "mlp_dim": 32, "iterations": )",
                      iterations, R"(}, "data": {"name": "cats-dogs", "size": 12, "test_share": 0.5, "folder": ")", folder / "images",
                      R"(", "cache": ")", folder / "cache", R"("}})"));
  std::vector<std::string> classes;
  for (int c = 0; c < 10; ++c) classes.push_back(std::string(1, static_cast<char>('a' + c)));
  tiny::write_modelnet(folder.path / "meshes", classes, 1, 1);
  for (const int iterations : {1, 3, 5, 21})
    check_fixture(folder, cat("set_sinkformer_it", iterations, ".safetensors"), "points", {50, 3},
                  cat(R"({"model": {"name": "set_transformer", "dim": 32, "heads": 4, "inducing": 4, "scale_by_model_width": true,)",
                      R"("rows_sum_to_inverse_count": true, "iterations": )", iterations, R"(}, "data": {"name": "modelnet40", "points": 50,)",
                      R"("sampled": 60, "folder": ")", folder / "meshes", R"(", "cache": ")", folder / "cache", R"("}})"));
}

TEST_CASE("the weights of translator and text encoder go to torch and fairseq and back to the bit") {
  const Folder folder;
  for (const auto& [recipe, packed, split] :
       {std::tuple(kTranslator, "decoder.layers.0.multihead_attn.in_proj_weight", "model.decoder.layers.0.encoder_attn.k_proj.weight"),
        std::tuple(kTextEncoder, "encoder.layers.1.self_attn.in_proj_weight", "model.layers.1.mha.WK.weight")}) {
    write_file(folder / "tiny.json", recipe);
    REQUIRE(::run("train tiny.json --out run -q --threads 1", "cd '" + folder.path.string() + "' && rm -rf run &&").code == 0);
    const Weights all = folder.read("run/last.safetensors"), ours = part(all, "model.");
    for (const char* to : {"torch", "fairseq"}) {
      CAPTURE(to);
      folder.succeed(cat("run/last.safetensors theirs.npz --to ", to));
      folder.succeed(cat("theirs.npz back.safetensors --from ", to, " --recipe tiny.json"));
      const Weights theirs = read_npz(folder / "theirs.npz");
      check_same(part(folder.read("back.safetensors"), "model."), ours);
      if (std::string(to) == "torch") {  // queries, keys, values
        const Tensor &whole = theirs.at(packed), &keys = all.at(split);
        REQUIRE(whole.shape() == Shape{48, 16});
        CHECK(npy_bytes(whole.rows(16, 32).clone()) == npy_bytes(keys));
      } else {
        CHECK(theirs.contains("encoder.layers.1.self_attn.q_proj.bias"));
        CHECK(theirs.contains("encoder.embed_tokens.weight"));
      }
      CHECK(theirs.contains(std::string(to) == "torch" ? "encoder.layers.0.norm2.bias" : "encoder.layers.0.final_layer_norm.bias"));
    }
    // What eval, train and inspect take is the same model.
    const Result before = ::run("eval run/last.safetensors", "cd '" + folder.path.string() + "' &&");
    const Result after = ::run("eval back.safetensors", "cd '" + folder.path.string() + "' &&");
    CHECK(before.code == 0);
    CHECK(before.out.substr(before.out.find(':')) == after.out.substr(after.out.find(':')));
  }
  CHECK(::run("train tiny.json --out more -q --threads 1 --init back.safetensors", "cd '" + folder.path.string() + "' &&").code == 0);
  CHECK(::run("inspect back.safetensors --item 0 --out head", "cd '" + folder.path.string() + "' &&").code == 0);
  const Result refused = folder.convert("run/last.safetensors weights.safetensors --from torch --to fairseq");
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, Contains("is a checkpoint, whose names are known"));
}

TEST_CASE("what does not fit a model is listed as a whole, and nothing is written") {
  const Folder folder;
  write_file(folder / "tiny.json", kTextEncoder);
  REQUIRE(::run("train tiny.json --out run -q --threads 1 --max-steps 1", "cd '" + folder.path.string() + "' &&").code == 0);
  folder.succeed("run/last.safetensors theirs.safetensors --to torch");
  Weights weights = folder.read("theirs.safetensors");
  weights.erase("linear.bias");
  weights.erase("encoder.layers.0.norm1.weight");
  weights["encoder.norm.weight"] = Tensor({16});
  weights["encoder.layers.1.linear1.weight"] = Tensor({23, 16});
  weights["linear.weight"] = Tensor({2, 16}, DType::f64);
  write_weights(folder / "wrong.safetensors", weights);
  const Result wrong = folder.convert("wrong.safetensors x.safetensors --from torch --recipe tiny.json");
  CHECK(wrong.code == 2);
  CHECK_THAT(wrong.err, Contains("wrong.safetensors: must fit the model: ") && Contains("model.linear.bias f32 (2) is missing") &&
                            Contains("model.layers.0.layernorm1.weight f32 (16) is missing") &&
                            Contains("model.encoder.norm.weight f32 (16) is unexpected") &&
                            Contains("model.layers.1.ffn.linear1.weight must be f32 (24,16), got f32 (23,16)") &&
                            Contains("model.linear.weight must be f32 (2,16), got f64 (2,16)"));
  CHECK(std::count(wrong.err.begin(), wrong.err.end(), '\n') == 1);
  CHECK_FALSE(fs::exists(folder / "x.safetensors"));
}

TEST_CASE("values keep their bits between safetensors and npz, half precision becomes f32") {
  const Folder folder;
  const Weights weights = {{"a.b/c", Tensor::of<float>({2, 2}, {std::bit_cast<float>(0x7fa00001u), -0.0f, 1e-42f, 0.1f})},
                           {"double", Tensor::of<double>({1}, {0.1})},
                           {"long", Tensor::of<int64_t>({1}, {(int64_t{1} << 62) + 1})},
                           {"none", Tensor({0, 3}, DType::i32)},
                           {"scalar", Tensor(Shape{}, DType::f32)},
                           {"\xc3\xa9", Tensor::of<int32_t>({2}, {1, -1})}};
  write_weights(folder / "a.safetensors", weights);
  folder.succeed("a.safetensors b.npz");
  check_same(read_npz(folder / "b.npz"), weights);
  folder.succeed("b.npz c.safetensors");
  check_same(folder.read("c.safetensors"), weights);
  CHECK(read_file(folder / "a.safetensors", 1 << 20) == read_file(folder / "c.safetensors", 1 << 20));

  const std::string header = R"({"h":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},"b":{"dtype":"BF16","shape":[1],"data_offsets":[4,6]}})";
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  write_file(folder / "half.safetensors", bytes + header + std::string("\x00\x3c\x01\x00\x80\x3f", 6));
  folder.succeed("half.safetensors half.npz");
  check_same(read_npz(folder / "half.npz"), {{"h", Tensor::of<float>({2}, {1, 0x1p-24f})}, {"b", Tensor::of<float>({1}, {1})}});
}

TEST_CASE("wrong use and malformed files are told in a sentence, and what was there stays") {
  const Folder folder;
  fs::create_directory(folder / "folder.npz");
  write_file(folder / "empty.npz", "");
  write_file(folder / "empty.safetensors", "");
  write_file(folder / "magic.npz", std::string(100, 'x'));
  write_file(folder / "huge.safetensors", std::string(8, '\x7f') + "{}");
  write_weights(folder / "good.safetensors", {{"x", Tensor({3})}});
  write_file(folder / "short.safetensors", read_file(folder / "good.safetensors", 1 << 20).substr(0, 70));
  write_npz(folder / "good.npz", std::vector<std::pair<std::string, Tensor>>{{"x", Tensor({3})}});
  write_file(folder / "short.npz", read_file(folder / "good.npz", 1 << 20).substr(0, 150));
  write_weights(folder / "up.safetensors", {{"../x", Tensor({3})}});
  write_weights(folder / "torch.safetensors", {{"encoder.layers.0.self_attn.in_proj_weight", Tensor({4, 2})}});
  write_weights(folder / "half.safetensors", {{"encoder.layers.0.self_attn.q_proj.weight", Tensor({4, 2})}});
  write_weights(folder / "tied.safetensors",
                {{"decoder.output_projection.weight", Tensor::of<float>({1}, {1})}, {"decoder.embed_tokens.weight", Tensor({1})}});
  write_weights(folder / "two.safetensors",
                {{"embedding.weight", Tensor({1})}, {"encoder.embed_tokens.weight", Tensor({1})}, {"layers.0.mha.linear.bias", Tensor({1})}});
  write_file(folder / "out.npz", "old");
  for (const auto& [arguments, code, message] : std::vector<std::tuple<std::string, int, std::string>>{
           {"", 2, "required"},
           {"good.npz", 2, "out is required"},
           {"good.npz out.txt", 2, "must end in .npz or .safetensors"},
           {"good.txt out.npz", 2, "must end in .npz or .safetensors"},
           {"absent.npz out.npz", 5, "absent.npz"},
           {"absent.safetensors out.npz", 5, "absent.safetensors"},
           {"folder.npz out.npz", 5, "folder.npz"},
           {"good.npz folder.npz", 5, "folder.npz"},
           {"good.npz absent/out.npz", 5, "absent/out.npz"},
           {"empty.npz out.npz", 2, "empty.npz: is no .npz file"},
           {"empty.safetensors out.npz", 2, "begins with 8 bytes"},
           {"magic.npz out.npz", 2, "magic.npz: is no .npz file"},
           {"huge.safetensors out.npz", 2, "a header has at most"},
           {"short.safetensors out.npz", 2, "short.safetensors: "},
           {"short.npz out.npz", 2, "truncated"},
           {"up.safetensors out.npz", 2, "relative paths without '..', got '../x'"},
           {"good.npz out.npz --prefix y", 2, "no name begins with 'y'"},
           {"good.npz out.npz --from torch", 2, "--from requires --to or --recipe"},
           {"good.npz out.npz --to torch", 2, "--to requires --from"},
           {"good.npz out.npz --from tensorflow --to torch", 2, "tensorflow"},
           {"good.npz out.npz --from torch --recipe set_shapes_small", 2, "a checkpoint, whose name must end in .safetensors"},
           {"good.npz out.safetensors --from torch --recipe set_shapes_small", 2, "such as encoder.layers.0.self_attn.in_proj_weight"},
           {"good.npz out.npz --from torch --to fairseq --recipe set_shapes_small", 2, "excludes"},
           {"good.npz out.npz --set seed=1", 2, "requires"},
           {"torch.safetensors out.npz --from torch --to fairseq", 2, "in_proj_weight must hold queries, keys and values of one size, got (4,2)"},
           {"half.safetensors out.npz --from fairseq --to torch", 2, "in_proj_weight requires queries, keys and values of one shape, got (4,2)"},
           {"tied.safetensors out.npz --from fairseq --to fairseq", 2, "must equal decoder.embed_tokens.weight"},
           {"two.safetensors out.npz --from authors --to fairseq", 2, "more than one tensor would be called 'encoder.embed_tokens.weight'"},
       }) {
    CAPTURE(arguments);
    const Result result = folder.convert(arguments);
    CHECK(result.code == code);
    CHECK_THAT(result.err, Contains("sinkgrad: ") && Contains(message));
    CHECK(result.out.empty());
    CHECK(read_file(folder / "out.npz", 100) == "old");
  }
  folder.succeed("good.npz out.npz");
  CHECK(read_npz(folder / "out.npz").size() == 1);
}

TEST_CASE("what others keep beside their parameters is left out where it says nothing new, and refused where it does") {
  const Tensor table = Tensor::of<float>({2, 2}, {1, 2, 3, 4});
  const Weights fairseq = {{"encoder.version", Tensor({1})},
                           {"decoder.output_projection.weight", table.clone()},
                           {"decoder.embed_tokens.weight", table},
                           {"decoder.embed_positions._float_tensor", Tensor({1})}};
  check_same(renamed(fairseq, Naming::fairseq, Naming::fairseq, "w"), {{"decoder.embed_tokens.weight", table}});

  TextEncoder model({.vocabulary = 5, .max_length = 6, .dim = 8, .mlp_dim = 8, .depth = 1, .heads = 2});
  Weights weights = constants_of(model);
  REQUIRE(weights.at("pos_embedding.weight").shape() == Shape{7, 8});
  weights["pos_embedding.weight"] = weights["pos_embedding.weight"].rows(0, 5).clone();  // of shorter texts
  Weights changed = {{"pos_embedding.weight", weights["pos_embedding.weight"].clone()}};
  remove_constants(weights, model, "w");
  CHECK(weights.empty());
  changed["pos_embedding.weight"].span<float>()[9] += 1e-3f;
  CHECK_THROWS_WITH(remove_constants(changed, model, "w"),
                    Contains("w: pos_embedding.weight must be the model's own table of positions") && Contains("row 1"));
  changed["pos_embedding.weight"] = Tensor({7, 4});
  CHECK_THROWS_WITH(remove_constants(changed, model, "w"), Contains("must be (7,8), got (7,4)"));
}
