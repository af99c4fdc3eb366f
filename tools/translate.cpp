// `sinkgrad translate` and `sinkgrad bleu`: text in, translations out; and how good they are.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <iterator>
#include <memory>

#include "core/parallel.h"
#include "datasets/text_file.h"
#include "tools/commands.h"
#include "tools/option_checks.h"
#include "tools/shared_options.h"
#include "tools/translation.h"

namespace sinkgrad {
namespace {

struct TranslateCommand {
  std::string checkpoint, device = "auto";
  SearchOptions search;
  std::optional<int64_t> iterations;
  int threads = 0;
};

void translate(const TranslateCommand& command) {
  if (command.threads > 0) set_threads(command.threads);
  std::string note;
  const Device device = open_device(command.device, note);
  if (!note.empty()) fmt::print(stderr, "{}\n", note);
  TranslationSystem system(command.checkpoint, device, command.iterations);
  const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
  size_t refused = 0;
  const auto refuse = [&](const std::string& message) { fmt::print(stderr, "{}\n", message), ++refused; };
  for (const std::string& line : system.translate(lines_of(input), command.search, refuse)) fmt::print("{}\n", line);
  require<InputError>(refused == 0, "translate: ", refused, refused == 1 ? " line was" : " lines were", " left untranslated");
}

struct BleuCommand {
  std::string translations;
  std::vector<std::string> references;
  bool case_sensitive = false;
};

/// The lines of a text file, of standard input for "-".
std::vector<std::string> lines_in(const std::string& path) {
  if (path != "-") return read_lines(path);
  std::vector<std::string> lines = lines_of(std::string{std::istreambuf_iterator<char>(std::cin), {}});
  for (size_t i = 0; i < lines.size(); ++i) require_utf8(lines[i], cat("-: line ", i + 1));
  return lines;
}

void score(const BleuCommand& command) {
  require<InputError>(std::count(command.references.begin(), command.references.end(), "-") + (command.translations == "-") <= 1,
                      "bleu: '-' is standard input, which can be read once");
  const std::vector<std::string> translations = lines_in(command.translations);
  std::vector<std::vector<std::string>> references;
  require<InputError>(!translations.empty(), command.translations, ": must hold at least one sentence, it is empty");
  for (const std::string& path : command.references) {
    references.push_back(lines_in(path));
    require<InputError>(references.back().size() == translations.size(), path, ": must have a line for each of the ", translations.size(),
                        " lines of ", command.translations, ", got ", references.back().size());
  }
  fmt::print("tokenised   {}\n", bleu(translations, references, BleuOptions::tokenised(true)).text());
  fmt::print("13a         {}\n", bleu(translations, references, BleuOptions::tokenised(false)).text());
  fmt::print("sacreBLEU   {}\n", bleu(translations, references, BleuOptions::sacre(!command.case_sensitive)).text());
}

}  // namespace

void add_translate(CLI::App& app) {
  const auto options = std::make_shared<TranslateCommand>();
  CLI::App* command = app.add_subcommand("translate", "Translate standard input, one sentence per line");
  command->footer(
      "The dictionaries that `sinkgrad train` wrote are read from the checkpoint's folder. As many lines come out as go in: a line that cannot be\n"
      "translated is named and leaves an empty one, and the exit code is then 2.\n"
      "Example: echo 'drei@@ und@@ zwanzig' | sinkgrad translate runs/number_words_small/best.safetensors");
  command->add_option("checkpoint", options->checkpoint, "a translator that `sinkgrad train` wrote")->required();
  command->add_option("--beam", options->search.beam, "sentences that are followed at a time; 1 is greedy")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--length-penalty", options->search.length_penalty, "score = log probability / length^penalty")
      ->check(non_negative_number)
      ->capture_default_str();
  command->add_option("--iterations", options->iterations, "half-steps of the encoder's attention [as trained]")->check(positive_integer);
  add_device_option(*command, options->device, "where to compute");
  add_threads_option(*command, options->threads);
  command->callback([options] { translate(*options); });
}

void add_bleu(CLI::App& app) {
  const auto options = std::make_shared<BleuCommand>();
  CLI::App* command = app.add_subcommand("bleu", "Score translations against references, one sentence per line");
  command->footer(
      "tokenised: words between spaces, in small letters, no smoothing, for text that is tokenised. 13a: the same on mteval-v13a's tokens, for text "
      "as\n"
      "people write it. sacreBLEU: 13a with exponential smoothing. Files may be gzip'ed, - is standard input.\n"
      "Example: sinkgrad bleu translated.en test_2016_flickr.en.gz");
  command->add_option("translations", options->translations, "a text file, or -")->required();
  command->add_option("references", options->references, "one or more text files")->required();
  command->add_flag("--case-sensitive", options->case_sensitive, "of the sacreBLEU score");
  command->callback([options] { score(*options); });
}

}  // namespace sinkgrad
