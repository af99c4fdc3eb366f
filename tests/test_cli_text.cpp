// The text commands from outside: info without data, translate, bleu, and the adapt protocol with its table.
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "program.h"
#include "tiny_text.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

/// A translator of number words that trains in a moment.
constexpr const char* kTiny =
    R"({"model": {"name": "translator", "dim": 16, "encoder_layers": 1, "decoder_layers": 1, "heads": 2, "mlp_dim": 16, "dropout": 0.1},
      "data": {"name": "number_words", "train": 200, "valid": 20, "test": 20}, "optimizer": {"name": "adam", "lr": 0.01},
      "epochs": 1, "batch_size": 256})";

}  // namespace

TEST_CASE("info shows the paper's text models without their data, train says what is missing") {
  CHECK_THAT(run("info imdb", "SINKGRAD_DATA=/nonexistent").out, Contains("not available"));
  CHECK_THAT(run("info imdb_released", "SINKGRAD_DATA=/nonexistent").out, Contains("\"gradient\":\"frozen\""));
  CHECK_THAT(run("info iwslt", "SINKGRAD_DATA=/nonexistent").out, Contains("encoder.layers.5.self_attn.q_proj.weight"));
  const Result train = run("train imdb --out " + (TemporaryFolder() / "x"), "SINKGRAD_DATA=/nonexistent");
  CHECK(train.code == 5);
  CHECK_THAT(train.err, Contains("ID_RATING.txt"));
}

TEST_CASE("bleu prints each score with what it is, and names what does not fit") {
  const TemporaryFolder folder;
  write_file(folder / "t", "the cat sat on the mat .\n");
  write_file(folder / "r", "The cat sat on the mat.\n");
  const Result scores = run("bleu " + (folder / "t") + " " + (folder / "r"));
  CHECK(scores.code == 0);
  CHECK_THAT(
      scores.out,
      Contains("BLEU = 100.00, 100.0/100.0/100.0/100.0 (BP=1.000, ratio=1.000, length=7, reference=7) refs:1|case:lc|eff:no|tok:13a|smooth:exp"));
  CHECK_THAT(scores.out, Contains("refs:1|case:lc|eff:no|tok:none|smooth:none"));
  CHECK_THAT(run("bleu --case-sensitive " + (folder / "t") + " " + (folder / "r")).out, Contains("case:mixed"));
  write_file(folder / "r", "one\ntwo\n");
  const Result mismatch = run("bleu " + (folder / "t") + " " + (folder / "r"));
  CHECK(mismatch.code == 2);
  CHECK_THAT(mismatch.err, Contains("/r: must have a line for each of the 1 lines of ") && Contains("got 2"));
  write_file(folder / "empty", "");
  const Result empty = run("bleu " + (folder / "empty") + " " + (folder / "r"));
  CHECK(empty.code == 2);
  CHECK_THAT(empty.err, Contains("/empty: must hold at least one sentence"));
  write_file(folder / "marked", "\xef\xbb\xbfthe cat sat on the mat .\n");
  CHECK_THAT(run("bleu " + (folder / "marked") + " " + (folder / "t")).out, Contains("BLEU = 100.00"));
  CHECK(run("bleu " + (folder / "t") + " " + (folder / "absent")).code == 5);
  CHECK(run("bleu - " + (folder / "t"), "", folder / "marked").out == run("bleu " + (folder / "marked") + " " + (folder / "t")).out);
  CHECK_THAT(run("bleu " + (folder / "t") + " -", "", folder / "t").out, Contains("BLEU = 100.00"));
  const Result twice = run("bleu - -", "", folder / "t");
  CHECK(twice.code == 2);
  CHECK(twice.err == "sinkgrad: bleu: '-' is standard input, which can be read once\n");
  write_file(folder / "bytes", "a\nb\xff\n");
  CHECK_THAT(run("bleu - " + (folder / "r"), "", folder / "bytes").err, Contains("-: line 2: must be UTF-8"));
}

TEST_CASE("translate: as many lines as came in, the same for any batch and from a folder that was moved") {
  const TemporaryFolder folder;
  write_file(folder / "tiny.json", kTiny);
  REQUIRE(run("train " + (folder / "tiny.json") + " -q --out " + (folder / "run")).code == 0);
  write_file(folder / "in", "drei@@ und@@ zwanzig\n\nunbekannt\neins");
  const Result first = run("translate " + (folder / "run/last.safetensors") + " --beam 2", "", folder / "in");
  CHECK(first.code == 0);
  CHECK(std::count(first.out.begin(), first.out.end(), '\n') == 4);
  const size_t second_line = first.out.find('\n') + 1;
  CHECK(first.out[second_line] == '\n');
  fs::rename(folder / "run", folder / "moved");
  CHECK(run("translate " + (folder / "moved/last.safetensors") + " --beam 2 --threads 1", "", folder / "in").out == first.out);
  CHECK(run("translate " + (folder / "moved/last.safetensors") + " --beam 2 --iterations 21", "", folder / "in").code == 0);
  // A line that cannot be translated is named; the others are translated all the same.
  std::string longer;
  for (int i = 0; i < 64; ++i) longer += "eins ";
  write_file(folder / "bad", "drei@@ und@@ zwanzig\n\nunbekannt\neins\n\xff\n" + longer);
  const Result bad = run("translate " + (folder / "moved/last.safetensors") + " --beam 2", "", folder / "bad");
  CHECK(bad.code == 2);
  CHECK(bad.out == first.out + "\n\n");
  CHECK_THAT(bad.err, Contains("line 5: must be UTF-8") && Contains("line 6: the model reads at most 63 words, got 64") &&
                          Contains("2 lines were left untranslated"));
  fs::remove(folder / "moved/dictionary.target.txt");
  const Result missing = run("translate " + (folder / "moved/last.safetensors"), "", folder / "in");
  CHECK(missing.code == 2);
  CHECK_THAT(missing.err, Contains("moved/dictionary.target.txt: is missing"));
  // What `convert` makes has no dictionaries.
  REQUIRE(run("convert " + (folder / "moved/last.safetensors") + " " + (folder / "alone.safetensors") + " --recipe " + (folder / "tiny.json")).code ==
          0);
  const Result alone = run("translate " + (folder / "alone.safetensors"), "", folder / "in");
  CHECK(alone.code == 2);
  CHECK_THAT(alone.err,
             Catch::Matchers::EndsWith("sinkgrad: " + (folder / "alone.safetensors") +
                                       ": a translator needs its dictionaries beside it; copy from the folder of the run that they belong to "
                                       "dictionary.source.txt, dictionary.target.txt, segmentation.json, subwords.model, the last one only if it "
                                       "is there\n"));
  CHECK(run("train " + (folder / "tiny.json") + " -q --resume --out " + (folder / "moved")).code == 0);  // writes it again
  CHECK(run("translate " + (folder / "moved/last.safetensors") + " --beam 2", "", folder / "in").out == first.out);
  for (const char* wrong : {"--length-penalty nan", "--length-penalty=-1", "--beam 0", "--beam 100000"})
    CHECK(run("translate " + (folder / "moved/last.safetensors") + " " + wrong, "", folder / "in").code == 2);
  REQUIRE(run("train opinions_small -q --set data.train=40 --set data.test=20 --set epochs=1 --out " + (folder / "text")).code == 0);
  CHECK_THAT(run("translate " + (folder / "text/last.safetensors"), "", folder / "in").err, Contains("a translator is needed"));
  CHECK(run("adapt opinions_small --out " + (folder / "no")).code == 2);
}

TEST_CASE("adapt: four lines, three runs, the tuned ones start from the trained weights, and it resumes") {
  const TemporaryFolder folder;
  write_file(folder / "tiny.json", kTiny);
  const std::string protocol = "adapt " + (folder / "tiny.json") + " --half-steps 3 --epochs 1 --out " + (folder / "study") + " --beam ",
                    command = protocol + "2";
  for (const auto& [more, message] :
       {std::pair("", "/other: adapt requires an empty folder, or --resume to continue, got 'notes.txt' in it"),
        std::pair(" --resume", "/other: adapt --resume requires the folder of an earlier adapt, got 'notes.txt' in it")}) {
    fs::create_directories(folder / "other");
    write_file(folder / "other/notes.txt", "mine");
    const Result other = run("adapt " + (folder / "tiny.json") + " --out " + (folder / "other") + more);
    CHECK(other.code == 2);
    CHECK_THAT(other.err, Contains(message));
    CHECK(std::distance(fs::directory_iterator(folder / "other"), {}) == 1);
  }
  const Result whole = run(command);
  REQUIRE(whole.code == 0);
  const size_t note = whole.err.find("running on the CPU");  // where a CUDA backend is built and no GPU opens
  CHECK((note == std::string::npos || whole.err.find("running on the CPU", note + 1) == std::string::npos));
  for (const char* line :
       {"  Transformer  ", "its weights with 3 half-steps", "Transformer trained 1 epoch further", "Sinkformer trained 1 epoch further"})
    CHECK_THAT(whole.out, Contains(line));
  const std::string config = read_file(folder.path / "study/seed1/sinkformer_tuned/config.json", 1 << 20);
  CHECK_THAT(config, Contains("\"lr\": 0.001") && Contains("\"iterations\": 3") && Contains("\"constant\""));
  CHECK_THAT(read_file(folder.path / "study/seed1/transformer/config.json", 1 << 20), Contains("\"lr\": 0.01") && Contains("\"iterations\": 1"));
  const Result used = run(command);
  CHECK(used.code == 2);
  CHECK_THAT(used.err, Contains("study: adapt requires an empty folder, or --resume to continue, got 'seed1' in it"));
  fs::remove_all(folder.path / "study/seed1/sinkformer_tuned");
  const Result again = run(command + " --resume");
  CHECK(again.code == 0);
  const auto table = [](const std::string& out) { return out.substr(out.find("BLEU on the test set")); };
  CHECK(table(again.out) == table(whole.out));

  // Scores of another beam are no scores of this one.
  const fs::path file = folder.path / "study/seed1/bleu.json";
  nlohmann::json scores = nlohmann::json::parse(read_file(file, 1 << 20));
  for (auto& [name, score] : scores.items()) score["bleu"] = 77.77;
  write_file(file, scores.dump());
  CHECK_THAT(run(command + " --resume").out, Contains("77.77"));
  CHECK_THAT(run(protocol + "1 --resume").out, Contains("beam 1") && !Contains("77.77"));
  write_file(file, "[");
  const Result broken = run(command + " --resume");
  CHECK(broken.code == 2);
  CHECK_THAT(broken.err, Contains("bleu.json: must hold the scores of an earlier run: line 1, column 2: unexpected end of input"));
}

TEST_CASE("data says what it makes while it makes it, train -q does not") {
  const TemporaryFolder folder;
  tiny::write_reviews(folder.path);
  const std::string data = "folder=" + folder.path.string() + " --set ";
  const Result made = run("data imdb --set vocabulary=40 --set " + data + "cache=" + (folder / "a")),
               again = run("data imdb --set vocabulary=40 --set " + data + "cache=" + (folder / "a"));
  CHECK(made.code == 0);
  CHECK_THAT(made.err, Contains("note   making " + (folder / "a/subwords-")) && Contains("note   making " + (folder / "a/imdb-")) &&
                           Contains("note   that took "));
  CHECK(again.code == 0);
  CHECK(again.err.empty());
  const Result quiet = run("train imdb_small -q --max-steps 1 --set data.vocabulary=40 --set data." + data + "data.cache=" + (folder / "b") +
                           " --out " + (folder / "run"));
  CHECK(quiet.code == 0);
  CHECK(quiet.err.empty());
}

TEST_CASE("adapt looks at its test set before it trains") {
  const TemporaryFolder folder;
  write_file(folder / "tiny.json", kTiny);
  const Result none = run("adapt " + (folder / "tiny.json") + " --set data.test=0 --out " + (folder / "study"));
  CHECK(none.code == 2);
  CHECK_THAT(none.err, Contains("its test set, 0, must hold at least one pair of sentences"));
  CHECK_FALSE(fs::exists(folder / "study"));
  for (const char* split : {"train", "valid", "test"})
    for (const char* language : {"de", "en"}) write_file(folder / (cat(split, ".", language).c_str()), split[1] == 'e' ? "" : "ein haus\n");
  const Result empty = run("adapt " + (folder / "tiny.json") + " --set data='{\"name\":\"translation\",\"folder\":\"" + folder.path.string() +
                           "\"}' --out " + (folder / "study"));
  CHECK(empty.code == 2);
  CHECK_THAT(empty.err, Contains("\"test\", must hold at least one pair"));
  CHECK_FALSE(fs::exists(folder / "study"));
}

TEST_CASE("a model that this machine cannot hold is refused before it is drawn") {
  const TemporaryFolder folder;
  const Result large = run("train opinions_small --set model.dim=1000000 --set model.mlp_dim=1000000 --out " + (folder / "run"));
  CHECK(large.code == 4);
  CHECK_THAT(large.err, Contains("opinions_small: its ") && Contains(" parameters need ") && Contains("this machine has "));
  CHECK_FALSE(fs::exists(folder / "run"));
}

TEST_CASE("train --init starts from the weights of a checkpoint") {
  const TemporaryFolder folder;
  write_file(folder / "tiny.json", kTiny);
  const std::string recipe = folder / "tiny.json";
  REQUIRE(run("train " + recipe + " -q --out " + (folder / "a")).code == 0);
  const Result still = run("train " + recipe + " -q --set optimizer.lr=0 --init " + (folder / "a/last.safetensors") + " --out " + (folder / "b"));
  REQUIRE(still.code == 0);
  const std::string a = run("eval " + (folder / "a/last.safetensors")).out, b = run("eval " + (folder / "b/last.safetensors")).out;
  CHECK(a.substr(a.find("accuracy")) == b.substr(b.find("accuracy")));
  CHECK(run("train " + recipe + " -q --init " + (folder / "absent.safetensors") + " --out " + (folder / "c")).code == 5);
  CHECK(run("train " + recipe + " -q --set model.dim=8 --init " + (folder / "a/last.safetensors") + " --out " + (folder / "c")).code == 2);
  CHECK_FALSE(fs::exists(folder / "c"));
}
