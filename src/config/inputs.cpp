#include "config/inputs.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>

#include "config/include.hpp"
#include "config/key_reader.hpp"
#include "config/key_source.hpp"
#include "config/key_writer.hpp"
#include "config/keys.hpp"
#include "config/tree.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "model/description/lora.hpp"
#include "model/description/parameters.hpp"

namespace llamesh::config {
namespace {

/// Checks data keys against each other.
void complete_data(const Inputs& in, const KeySource& source) {
  const bool random = in.data.format == data::Format::random;
  const auto sources = in.data.training_sources();
  validate(!sources.empty(), "{}: data.train is missing; name at least one file",
           source.of({"data.train"}));
  for (std::size_t i = 0; i < sources.size(); ++i)
    validate(!sources[i].files.empty() || random,
             "{}: data.train[{}].files is missing; name at least one file",
             source.of({"data.train"}), i);
  const bool ids = random || in.data.format == data::Format::tokens;
  validate(!in.data.document_mask || !ids || in.data.eos_token >= 0,
           "{}: data.document_mask is true, but token ids do not mark the ends of documents; set "
           "data.eos_token",
           source.of({"data.document_mask", "data.format", "data.eos_token"}));
  validate(!in.data.packs_documents() || !ids || in.data.eos_token >= 0,
           "{}: data.packing needs the ends of documents, which token ids do not mark; set "
           "data.eos_token, or data.packing to concatenate",
           source.of({"data.packing", "data.format", "data.eos_token"}));
  validate(!random || in.train.epochs == 0,
           "{}: train.epochs is {}, but random tokens are unlimited; set train.steps instead",
           source.of({"data.format", "train.epochs"}), in.train.epochs);
  if (in.evaluate.every_steps == 0) return;
  validate(in.evaluate.sequences == 0 || in.evaluate.batches == 0,
           "{}: evaluate.sequences is {} and evaluate.batches is {}; give one of them",
           source.of({"evaluate.sequences", "evaluate.batches"}), in.evaluate.sequences,
           in.evaluate.batches);
  validate(!random || in.evaluate.sequences > 0 || in.evaluate.batches > 0,
           "{}: evaluate.sequences is 0, which means all validation data, but random tokens are "
           "unlimited; set it to a number of sequences",
           source.of({"evaluate.sequences", "evaluate.every_steps", "data.format"}));
  validate(!in.validation_sets().empty(),
           "{}: evaluate.every_steps is {}, but data.validation is missing; name its files or set "
           "evaluate.every_steps to 0",
           source.of({"evaluate.every_steps", "data.validation"}), in.evaluate.every_steps);
}

/// Checks the validation sets' names, and the keys that need their losses.
void complete_evaluation(const Inputs& in, const KeySource& source) {
  const auto is_good = [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_' || c == '.';
  };
  for (const auto& [name, files] : in.evaluate.files) {
    validate(
        !name.empty() && name.size() <= 64 && std::ranges::all_of(name, is_good),
        "{}: '{}' is not a valid name for a validation set; use up to 64 of the characters a-z, "
        "A-Z, 0-9, '-', '_' and '.'",
        source.with("evaluate.files"), excerpt(name));
    validate(name != train::default_validation_set,
             "{}: the name '{}' is reserved for data.validation; use another name, or that key",
             source.with("evaluate.files"), name);
    validate(!files.empty(), "{}: the set '{}' has no files; name at least one",
             source.with("evaluate.files"), name);
  }
  std::vector<std::string> names;
  for (const auto& set : in.validation_sets()) names.push_back(set.name);
  const auto& best_by = in.evaluate.best_by;
  validate(best_by.empty() || in.data.format == data::Format::random ||
               std::ranges::find(names, best_by) != names.end(),
           "{}: evaluate.best_by is '{}', which is not a validation set; choose one of: {}",
           source.of({"evaluate.best_by", "evaluate.files"}), excerpt(best_by),
           names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
  if (in.evaluate.every_steps > 0) return;
  validate(in.train.early_stop.patience == 0,
           "{}: train.early_stop.patience is {}, but evaluate.every_steps is 0, so there are no "
           "validation losses; set evaluate.every_steps",
           source.of({"train.early_stop.patience", "evaluate.every_steps"}),
           in.train.early_stop.patience);
  validate(in.checkpoint.keep_best == 0,
           "{}: checkpoint.keep_best is {}, but evaluate.every_steps is 0, so there are no "
           "validation losses; set evaluate.every_steps",
           source.of({"checkpoint.keep_best", "evaluate.every_steps"}), in.checkpoint.keep_best);
}

/// Refuses control characters: names appear in logs, scripts and one-line messages.
void validate_printable(const KeySource& source, const char* key, const std::string& value) {
  validate(std::ranges::none_of(value, [](unsigned char c) { return c < 0x20 || c == 0x7f; }),
           "{}: '{}' contains a newline or another control character; remove it", source.with(key),
           value);
}

/// Checks all values in `node`, whose key is `path`. Keys that are not UTF-8 are rejected as
/// unknown.
void validate_values(const Node& node, const std::string& path) {
  validate_utf8(node.scalar, fmt::format("{}: {}", node.where, path));
  for (const Node& item : node.items) validate_values(item, path);
  for (const auto& [key, value] : node.members)
    validate_values(value, path.empty() ? key : fmt::format("{}.{}", path, key));
}

std::string note_on_default(const model::ModelConfig& m, const std::string& name) {
  return fmt::format(
      "{} names no model; training the default: {} layers, hidden_size {}, vocab_size {}, {:.1f} "
      "million parameters; for another set model.file or model.hf",
      name, m.num_hidden_layers, m.hidden_size, m.vocab_size,
      static_cast<double>(model::parameter_table(m).numel()) / 1e6);
}

constexpr std::array<std::string_view, 5> without_effect{"run", "checkpoint", "log", "debug",
                                                         "profile"};

/// Groups whose keys are names that users choose, not options that a version may lack.
constexpr std::array<std::string_view, 2> named_by_users{"evaluate.files", "sharding.spec"};

/// Formats the value on one line.
std::string text_of(const Node& node) {
  if (node.kind == Node::Kind::scalar) return node.scalar.empty() ? "''" : node.scalar;
  if (node.kind == Node::Kind::null) return "null";
  std::string inside;
  const auto add = [&](const std::string& text) { inside += (inside.empty() ? "" : ", ") + text; };
  for (const Node& item : node.items) add(text_of(item));
  for (const auto& [key, value] : node.members) add(key + ": " + text_of(value));
  return node.kind == Node::Kind::list ? '[' + inside + ']' : '{' + inside + '}';
}

void compare(const Node& before, const Node& now, const std::string& path,
             std::vector<std::string>& changed) {
  if (before.kind == Node::Kind::map && now.kind == Node::Kind::map) {
    const auto path_of = [&](const std::string& key) {
      return path.empty() ? key : fmt::format("{}.{}", path, key);
    };
    const bool is_named_by_user = std::ranges::find(named_by_users, path) != named_by_users.end();
    for (const auto& [key, value] : now.members)
      if (const Node* old = before.find(key))
        compare(*old, value, path_of(key), changed);
      else if (is_named_by_user)
        changed.push_back(fmt::format("{} added: {}", path_of(key), text_of(value)));
    for (const auto& [key, value] : before.members)
      if (is_named_by_user && now.find(key) == nullptr)
        changed.push_back(fmt::format("{} removed: {}", path_of(key), text_of(value)));
  } else if (text_of(before) != text_of(now)) {
    changed.push_back(fmt::format("{} {} -> {}", path, text_of(before), text_of(now)));
  }
}

}  // namespace

void complete(Inputs& in, const KeySource& source) {
  const std::string& run = in.run.name;
  validate(!run.empty() && run.find('/') == std::string::npos && run[0] != '.',
           "{}: '{}' is not a valid folder name; use a word without / that does not "
           "begin with "
           "a dot",
           source.with("run.name"), run);
  if (in.run.folder.empty()) in.run.folder = "runs/" + run;
  validate_printable(source, "run.name", run);
  validate_printable(source, "run.folder", in.run.folder);
  in.model = in.model.resolved();
  if (in.model.lora && !in.pretrained.adapters.empty())
    if (const auto absent = model::drop_absent_targets(in.model); !absent.empty())
      in.notes.push_back(
          fmt::format("model.lora.from: skipping adapters for {}, which the model does not have",
                      fmt::join(absent, " and ")));
  validate(in.memory.full_checkpointing_layers <= in.model.num_hidden_layers,
           "{}: memory.full_checkpointing_layers is {}, but the model has {} layers; set it to at "
           "most that",
           source.of({"memory.full_checkpointing_layers"}), in.memory.full_checkpointing_layers,
           in.model.num_hidden_layers);
  validate(!in.pretrained.load_weights || !in.pretrained.hf.empty(),
           "{}: model.load_weights is true, but model.hf is not set; set model.hf to the folder",
           source.of({"model.load_weights"}));
  validate(in.train.objective != train::Objective::next_token ||
               in.train.beta == train::TrainOptions().beta,
           "{}: train.beta is {}, but train.objective is next_token, which has none; set "
           "train.objective to dpo or ipo, or leave it out",
           source.of({"train.beta", "train.objective"}), in.train.beta);
  train::resolve_objective(in);
  complete_data(in, source);
  complete_evaluation(in, source);
  validate(
      in.train.epochs == 0 || in.train.steps == 0,
      "{}: train.steps is {} and train.epochs {}; give one of them (train.steps: auto leaves it "
      "to train.epochs)",
      source.of({"train.steps", "train.epochs"}), in.train.steps, in.train.epochs);
}

Inputs parse_inputs(const std::string& text, const std::string& name,
                    const std::vector<std::string>& overrides) {
  Node root = parse_tree(text, name);
  validate(root.kind == Node::Kind::map, "{}: expected groups of keys, got {}", root.where,
           root.describe());
  std::string replaced = drop_replaced(root, overrides, name);
  std::vector<std::string> of_spec;  // the spec may be in a file that another override names
  for (const std::string& text_of_one : overrides)
    if (is_spec_override(text_of_one))
      of_spec.push_back(text_of_one);
    else
      apply_override(root, text_of_one);
  const Node* model = root.find("model");
  const bool default_model = model == nullptr || model->members.empty();
  const auto is_lora = [](const auto& member) { return member.first == "lora"; };
  const bool has_only_lora = !default_model && std::ranges::all_of(model->members, is_lora);
  include_model(root, name);
  include_reference(root, name);
  include_spec(root, of_spec, [&](const Node& path) { return resolve_path(path, name).string(); });
  validate_values(root, "");
  Inputs inputs;
  inputs.data.format = data::Format::automatic;
  inputs.data.tokenizer = "auto";
  KeyReader reader(root);
  all_keys(reader, inputs);
  reader.finish();
  validate(!has_only_lora || !inputs.model.lora,
           "{}: model.lora has no model to adapt; set model.hf to the base model's folder", name);
  complete(inputs, KeySource(name, overrides));
  if (!replaced.empty()) inputs.notes.push_back(std::move(replaced));
  if (default_model) inputs.notes.push_back(note_on_default(inputs.model, name));
  return inputs;
}

Inputs load_inputs(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_inputs(read_yaml_file(path), path, overrides);
}

std::string to_yaml(const Inputs& inputs) {
  KeyWriter writer;
  Inputs copy = inputs;  // the list of keys also reads, so it takes non-const variables
  all_keys(writer, copy);
  return writer.text();
}

std::vector<std::string> changes(const std::string& before, const std::string& now) {
  std::vector<std::string> changed;
  Node present = parse_tree(now, "resolved inputs");
  std::erase_if(present.members, [](const auto& group) {
    return std::ranges::find(without_effect, group.first) != without_effect.end();
  });
  try {
    const Node past = parse_tree(before, "inputs in the checkpoint");
    if (past.kind == Node::Kind::map) compare(past, present, "", changed);
  } catch (const Error&) {
    return {};  // not written by llamesh: nothing to compare
  }
  return changed;
}

}  // namespace llamesh::config
