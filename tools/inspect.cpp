// `sinkgrad inspect`: what Sinkhorn does to a matrix or an attention head, half-step by half-step, forward and backward; or two of them side by
// side. Writes a page, JSON and .npz of the same numbers.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "core/file.h"
#include "core/npy.h"
#include "core/rng.h"
#include "core/version.h"
#include "nn/inspect/attention_head.h"
#include "tools/commands.h"
#include "tools/experiment.h"
#include "tools/option_checks.h"
#include "tools/shared_options.h"
#include "tools/ui/comparison_page.h"
#include "tools/ui/inspection_page.h"
#include "tools/ui/matrix.h"

namespace sinkgrad {
namespace {

namespace fs = std::filesystem;

struct InspectCommand {
  std::string subject, matrix, cotangent, against, out = "inspect", split = "test";
  std::vector<int64_t> size, masked_rows, masked_columns;
  std::vector<std::string> data;
  std::optional<int> half_steps;
  std::optional<double> tolerance;
  double spread = 1;
  uint64_t seed = 1;
  int64_t layer = 0, head = 0, item = 0;
  bool wants_head = false;  ///< any of the options that choose one was given
};

struct Subject {
  Tensor scores;
  InspectionOptions options;
  InspectionSource source;
  Numbers item = {};  ///< what the model saw; empty for other scores
};

/// Normal numbers times `spread`.
Tensor random_scores(const Shape& shape, uint64_t seed, double spread) {
  Tensor scores(shape, DType::f64);
  RandomStream random(seed, "scores");
  for (double& x : scores.span<double>()) x = spread * random.normal();
  return scores;
}

Subject random_subject(const InspectCommand& command) {
  const int64_t n = command.size[0], m = command.size.back();
  require<InputError>(n <= (int64_t{1} << 22) / m, "inspect: --size must ask for at most 4194304 scores, got ", n, " x ", m);
  return {.scores = random_scores({n, m}, command.seed, command.spread),
          .source = {.title = fmt::format("Random scores, {} x {}, seed {}, standard deviation {:g}", n, m, command.seed, command.spread),
                     .attributes = {{"kind", "random"}, {"seed", command.seed}, {"spread", command.spread}}}};
}

Subject matrix_subject(const InspectCommand& command) {
  const bool inline_text = command.subject.empty();
  const std::string name = inline_text ? "--matrix" : command.subject == "-" ? "standard input" : command.subject;
  const Tensor scores = inline_text ? parse_matrix(command.matrix, name) : read_matrix(command.subject, std::cin);
  return {.scores = scores,
          .source = {.title = fmt::format("Scores from {}, {} x {}", name, scores.shape()[0], scores.shape()[1]),
                     .attributes = {{"kind", "matrix"}, {"name", name}}}};
}

/// Runs the model on one item, forward and backward, and takes the head out of that step.
Subject head_subject(const InspectCommand& command) {
  const Checkpoint checkpoint = read_checkpoint(command.subject);
  Recipe recipe = recipe_of(checkpoint);
  for (const std::string& setting : command.data) recipe.set("data." + setting);
  const DataSplits splits = open_data(recipe);
  const DataSource& data = command.split == "test" ? *splits.test : *splits.train;
  require<InputError>(command.item < data.size(), "inspect: --item must lie in 0..", data.size() - 1, " of the ", command.split, " data, got ",
                      command.item);
  const auto model = open_model(recipe, data.item_shape(), data.classes());
  const std::vector<AttentionHeads*> layers = model->attentions();
  const auto layer_count = static_cast<int64_t>(layers.size());
  require<InputError>(command.layer < layer_count, command.subject, ": --layer must lie in 0..", layer_count - 1, ", got ", command.layer);
  AttentionHeads& attention = *layers[static_cast<size_t>(command.layer)];
  require<InputError>(command.head < attention.count, command.subject, ": --head must lie in 0..", attention.count - 1, ", got ", command.head);
  const ParameterPack pack(*model, DType::f32, 0);
  checkpoint.restore(pack);

  BatchMemory memory;
  const uint32_t index[] = {static_cast<uint32_t>(command.item)};
  const Batch batch = data.batch(index, std::nullopt, memory);
  Tape tape;
  tape.set_training(false);
  const Var logits = model->scores(tape.leaf(batch.inputs), batch.context ? tape.leaf(batch.context) : Var{});
  tape.retain_grad(attention.last);
  tape.backward(cross_entropy(logits, tape.leaf(batch.labels), 0, Smoothing::torch, kNoLabel));
  const HeadScores head = head_scores(attention, 0, command.head);

  Subject subject{.scores = head.scores, .options = head.options, .source = {}, .item = to_doubles(batch.inputs.view())};
  subject.source = {
      .title = fmt::format("Layer {}, head {} of {}, {} item {}", command.layer, command.head, command.subject, command.split, command.item),
      .row_name = "query",
      .column_name = "key",
      .attributes = {{"kind", "attention"},
                     {"checkpoint", command.subject},
                     {"layer", command.layer},
                     {"head", command.head},
                     {"split", command.split},
                     {"item", command.item}}};
  std::string& details = subject.source.details;
  if (batch.labels.count() == 1) {
    const Numbers values = to_doubles(tape.value(logits));
    const auto said = static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
    const auto label = static_cast<size_t>(batch.labels.span<int32_t>()[0]);
    details = fmt::format("The item is '{}', the model says '{}'. ", data.class_names()[label], data.class_names()[said]);
  }
  details += fmt::format("The loss is the model's own: W is its gradient with respect to this plan{}.",
                         attention.sinkhorn.gradient == SinkhornGradient::unrolled ? ""
                         : attention.sinkhorn.gradient == SinkhornGradient::frozen ? "; the model trains with the frozen gradient"
                                                                                   : "; the model trains with the implicit gradient");
  return subject;
}

Subject open_subject(const InspectCommand& command) {
  const int given = !command.subject.empty() + !command.matrix.empty() + !command.size.empty();
  require<InputError>(given == 1, "inspect: requires one of a file, --matrix and --size, got ", given == 0 ? "none" : "several");
  require<InputError>(!fs::is_directory(command.subject), command.subject,
                      ": is a folder; requires a file of scores or a checkpoint, such as best.safetensors of a run");
  const auto names_checkpoint = [](const std::string& path) { return path.ends_with(".safetensors"); };
  require<InputError>(!command.wants_head || names_checkpoint(command.subject) || names_checkpoint(command.against),
                      "inspect: --layer, --head and --item require a checkpoint NAME.safetensors, got ",
                      command.subject.empty() ? "scores" : command.subject);
  Subject subject = !command.size.empty()               ? random_subject(command)
                    : names_checkpoint(command.subject) ? head_subject(command)
                                                        : matrix_subject(command);
  InspectionOptions& options = subject.options;
  if (command.half_steps) options.half_steps = *command.half_steps;
  if (command.tolerance) options.tolerance = *command.tolerance;
  options.masked_queries.insert(options.masked_queries.end(), command.masked_rows.begin(), command.masked_rows.end());
  options.masked_keys.insert(options.masked_keys.end(), command.masked_columns.begin(), command.masked_columns.end());
  options.seed = command.seed;
  if (!command.cotangent.empty()) options.cotangent = read_matrix(command.cotangent, std::cin);
  return subject;
}

/// What --against names: the same scores with another number of half-steps, or other scores.
Subject other_subject(const InspectCommand& command, const Subject& first) {
  int half_steps = 0;
  const char* end = command.against.data() + command.against.size();
  if (const auto [stop, error] = std::from_chars(command.against.data(), end, half_steps); error == std::errc() && stop == end) {
    Subject other = first;
    other.options.half_steps = half_steps;
    return other;
  }
  InspectCommand other = command;
  other.subject = command.against;
  other.matrix.clear();
  other.size.clear();
  return open_subject(other);
}

ComparedSide inspected(const InspectCommand& command, Subject subject) {
  subject.source.attributes["version"] = SINKGRAD_VERSION;
  if (!subject.options.cotangent) subject.source.details += fmt::format("W is drawn from a normal distribution, seed {}.", command.seed);
  return {inspect(subject.scores, subject.options), std::move(subject.source)};
}

/// What makes two sides differ besides what was asked for.
std::vector<std::string> notes_on(const Subject& a, const Subject& b) {
  std::vector<std::string> notes;
  if (!a.item.empty() && !b.item.empty() && a.item != b.item) notes.push_back("the two models do not see the same item: their data differ");
  if (a.options.masked_keys != b.options.masked_keys || a.options.masked_queries != b.options.masked_queries)
    notes.push_back("other rows or columns are excluded in B than in A");
  return notes;
}

/// The page appears last: when it is there, so are its numbers.
void write_files(const std::string& name, const std::vector<std::pair<std::string, Tensor>>& arrays, const nlohmann::ordered_json& json,
                 const std::string& page, const std::string& text) {
  write_npz(name + ".npz", arrays);
  write_file(name + ".json", json.dump() + "\n");
  write_file(name + ".html", page);
  fmt::print("{0}written: {1}.html, {1}.json, {1}.npz\n", text, name);
}

void inspect_subject(const InspectCommand& command) {
  require<InputError>(fs::path(command.out).has_filename(), "inspect: --out must name the files to write, got '", command.out, "'");
  const fs::path folder = fs::path(command.out).parent_path();
  require<IoError>(folder.empty() || fs::is_directory(folder), folder.string(), ": the folder of --out does not exist");
  const std::string subtitle = fmt::format("sinkgrad {} \u00b7 inspect \u00b7 float64 on the CPU", SINKGRAD_VERSION);
  const Subject subject = open_subject(command);
  if (command.against.empty()) {
    const auto [inspection, source] = inspected(command, subject);
    write_files(command.out, inspection_arrays(inspection), inspection_json(inspection, source), inspection_page(inspection, source, subtitle),
                inspection_text(inspection, source));
    return;
  }
  const Subject other = other_subject(command, subject);
  Comparison comparison{.a = inspected(command, subject), .b = inspected(command, other), .change = {}, .notes = notes_on(subject, other)};
  comparison.change = difference(comparison.a.inspection, comparison.b.inspection);
  write_files(command.out, comparison_arrays(comparison), comparison_json(comparison), comparison_page(comparison, subtitle),
              comparison_text(comparison));
}

}  // namespace

void add_inspect(CLI::App& app) {
  const auto options = std::make_shared<InspectCommand>();
  CLI::App* command = app.add_subcommand("inspect", "Show what Sinkhorn does to scores and gradients, half-step by half-step");
  command->footer(
      "Example: sinkgrad inspect --size 6 8 --spread 2 --half-steps 5\n"
      "         sinkgrad inspect runs/sinkformer/best.safetensors --layer 0 --head 1 --item 3 --out head\n"
      "         sinkgrad inspect --size 8 --half-steps 1 --against 5 --out softmax_or_sinkhorn");
  CLI::Option* subject = command->add_option("subject", options->subject,
                                             "a matrix of scores (text, CSV, JSON, .npy; - is standard input), or a checkpoint NAME.safetensors");
  CLI::Option* matrix = command->add_option("--matrix", options->matrix, "the scores themselves, such as \"1 2; 3 5\"")->excludes(subject);
  CLI::Option* size = command->add_option("--size", options->size, "N [M]: random scores, N x M or N x N")
                          ->expected(1, 2)
                          ->check(positive_integer)
                          ->excludes(subject)
                          ->excludes(matrix);
  command->add_option("--seed", options->seed, "of random scores, and of W where it is random")->check(natural_number)->capture_default_str();
  command->add_option("--spread", options->spread, "standard deviation of random scores")
      ->check(non_negative_number)
      ->capture_default_str()
      ->needs(size);
  command->add_option("-l,--half-steps", options->half_steps, "rows first; 1 is softmax [5; the model's]")->check(positive_integer);
  command->add_option("--tolerance", options->tolerance, "stop earlier, once columns are off by no more [0: never; the model's]")
      ->check(non_negative_number);
  command->add_option("--mask-rows", options->masked_rows, "rows (queries) to exclude, counted from 0")->check(natural_number);
  command->add_option("--mask-columns", options->masked_columns, "columns (keys) to exclude, counted from 0")->check(natural_number);
  command->add_option("--cotangent", options->cotangent,
                      "a matrix W: the gradient is that of the sum of W times the plan [random; the model's loss]");
  const std::vector<CLI::Option*> choice = {command->add_option("--layer", options->layer, "attention layer of the checkpoint, counted from 0"),
                                            command->add_option("--head", options->head, "its head, counted from 0"),
                                            command->add_option("--item", options->item, "the item that the model sees, counted from 0")};
  for (CLI::Option* option : choice) option->check(natural_number)->capture_default_str();
  command->add_option("--split", options->split, "test or train")->check(CLI::IsMember({"test", "train"}))->capture_default_str();
  add_data_option(*command, options->data);
  command
      ->add_option("--against", options->against,
                   "compare: a number of half-steps for the same scores, or another matrix or checkpoint, inspected with the same options")
      ->check(CLI::Validator([](const std::string& s) { return s.empty() ? "must be a number of half-steps or a file" : ""; }, ""));
  command->add_option("-o,--out", options->out, "what to write: NAME.html, NAME.json and NAME.npz")->capture_default_str();
  command->callback([options, choice] {
    options->wants_head = std::any_of(choice.begin(), choice.end(), [](const CLI::Option* o) { return o->count() > 0; });
    inspect_subject(*options);
  });
}

}  // namespace sinkgrad
