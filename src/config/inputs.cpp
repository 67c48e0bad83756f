#include "config/inputs.hpp"

#include <algorithm>
#include <filesystem>

#include "checkpoint/hf/hf_config.hpp"
#include "checkpoint/location.hpp"
#include "config/key_reader.hpp"
#include "config/key_writer.hpp"
#include "config/keys.hpp"
#include "config/spec_tree.hpp"
#include "config/tree.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "data/file_patterns.hpp"

namespace llamesh::config {
namespace {

/// Resolves a path of an input file: relative to the file, or to the current folder when it was
/// given on the command line.
std::filesystem::path resolve_path(const Node& path, const std::string& name) {
  return path.where == "command line" ? std::filesystem::path(path.scalar)
                                      : std::filesystem::path(name).parent_path() / path.scalar;
}

/// The keys of a model's shape as in an input file.
Node tree_of(model::LlamaConfig shape, const std::string& name) {
  KeyWriter writer;
  shape_keys(writer, shape);
  return parse_tree(writer.text(), name);
}

/// Refuses a run or a checkpoint, which holds more than model.hf reads.
void refuse_checkpoint(const std::filesystem::path& folder, const std::string& where) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) return;
  validate(
      checkpoint::locate(folder.string()).kind == checkpoint::PathKind::hf_folder,
      "{0}: model.hf: {1} is not a Hugging Face folder but a run or a checkpoint; resume from it "
      "by checkpoint.resume={1}, or make it one by llamesh convert --from {1} --to hf:FOLDER",
      where, folder.string());
}

/// Merges config.json of the folder `model.hf` under the keys of `model`, which take precedence;
/// where all keys are given it is not read. The weights are loaded unless the inputs say otherwise.
void include_hf_folder(Node& root, const std::string& name) {
  Node* model = root.find("model");
  Node* hf = model ? model->find("hf") : nullptr;
  if (hf == nullptr || hf->scalar.empty()) return;
  validate(model->find("file") == nullptr,
           "{}: model.hf and model.file both give the model's shape; keep one of them", hf->where);
  hf->scalar = checkpoint::without_hf_prefix(hf->scalar);
  const auto folder = std::filesystem::absolute(resolve_path(*hf, name)).lexically_normal();
  hf->scalar = folder.string();
  const std::string where = hf->where;  // members are about to be added
  if (model->find("load_weights") == nullptr)
    model->members.emplace_back("load_weights", Node{Node::Kind::scalar, where, "true", {}, {}});
  Node below = tree_of(model::LlamaConfig{}, name);
  const auto written = [&](const auto& member) { return model->find(member.first) != nullptr; };
  if (std::ranges::all_of(below.members, written)) return;
  refuse_checkpoint(folder, where);
  below = tree_of(checkpoint::read_hf_config(folder), (folder / "config.json").string());
  overlay(below, std::move(*model));
  *model = std::move(below);
}

/// Merges the keys of the file `model.file` under those of `model`, which take precedence.
void include_model_file(Node& root, const std::string& name) {
  Node* model = root.find("model");
  Node* file = model ? model->find("file") : nullptr;
  if (file == nullptr) return;
  validate(file->kind == Node::Kind::scalar, "{}: model.file: expected a path, got {}", file->where,
           file->describe());
  const std::string path = resolve_path(*file, name).string();
  std::error_code ignored;
  validate(std::filesystem::exists(path, ignored), "{}: model.file: there is no file '{}'",
           file->where, path);
  Node below = parse_tree(read_yaml_file(path), path);
  validate(below.kind == Node::Kind::map, "{}: expected the keys of a model, got {}", below.where,
           below.describe());
  const Node* nested = below.find("file");
  validate(nested == nullptr, "{}: a model file cannot name another file",
           nested ? nested->where : "");
  std::erase_if(model->members, [](const auto& member) { return member.first == "file"; });
  overlay(below, std::move(*model));
  *model = std::move(below);
}

/// Checks of several data keys together.
void complete_data(const Inputs& in, const std::string& name) {
  const bool random = in.data.format == data::Format::random;
  const auto sources = in.data.training_sources();
  validate(!sources.empty(), "{}: data.train is missing; name at least one file", name);
  for (std::size_t i = 0; i < sources.size(); ++i)
    validate(!sources[i].files.empty() || random,
             "{}: data.train[{}].files is missing; name at least one file", name, i);
  const bool ids = random || in.data.format == data::Format::tokens;
  validate(!in.data.document_mask || !ids || in.data.eos_token >= 0,
           "{}: data.document_mask is true, but nothing says where the documents of token ids end; "
           "name the id in data.eos_token",
           name);
  validate(!random || in.train.epochs == 0,
           "{}: train.epochs is {}, but random tokens have no end; give train.steps", name,
           in.train.epochs);
  if (in.evaluate.every_steps == 0) return;
  validate(!random || in.evaluate.batches > 0,
           "{}: evaluate.batches is 0, which is all of the validation data, but random tokens have "
           "no end; say how many batches",
           name);
  validate(in.data.has_validation(),
           "{}: evaluate.every_steps is {}, but data.validation is missing; name its files or set "
           "evaluate.every_steps to 0",
           name, in.evaluate.every_steps);
}

/// Names are used in logs, scripts and one-line messages.
void validate_printable(const std::string& name, const char* key, const std::string& value) {
  validate(std::ranges::none_of(value, [](unsigned char c) { return c < 0x20 || c == 0x7f; }),
           "{}: {}: '{}' has a line's end or another control character in it; leave it out", name,
           key, value);
}

/// Checks of several keys together, and values that imply others.
void complete(Inputs& in, const std::string& name) {
  const std::string& run = in.run.name;
  validate(!run.empty() && run.find('/') == std::string::npos && run[0] != '.',
           "{}: run.name: '{}' cannot name a folder; use a word without / that does not begin with "
           "a dot",
           name, run);
  if (in.run.folder.empty()) in.run.folder = "runs/" + run;
  validate_printable(name, "run.name", run);
  validate_printable(name, "run.folder", in.run.folder);
  in.model = in.model.resolved();
  validate(
      in.memory.full_checkpointing_layers <= in.model.num_hidden_layers,
      "{}: memory.full_checkpointing_layers is {}, but the model has {} layers; name at most as "
      "many",
      name, in.memory.full_checkpointing_layers, in.model.num_hidden_layers);
  validate(!in.pretrained.load_weights || !in.pretrained.hf.empty(),
           "{}: model.load_weights is true, but model.hf names no folder to take them from", name);
  complete_data(in, name);
  validate(
      in.train.epochs == 0 || in.train.steps == 0,
      "{}: train.steps is {} and train.epochs {}; give one of them (train.steps: auto leaves it "
      "to train.epochs)",
      name, in.train.steps, in.train.epochs);
}

/// data::matching_files(), with `key` before the message of an error.
std::vector<std::string> matching_files(const std::string& word, data::Format format,
                                        const std::string& key) {
  try {
    return data::matching_files(word, format);
  } catch (const Error& error) {
    fail(error.code(), "{}: {}", key, error.what());
  }
}

}  // namespace

Inputs parse_inputs(const std::string& text, const std::string& name,
                    const std::vector<std::string>& overrides) {
  Node root = parse_tree(text, name);
  validate(root.kind == Node::Kind::map, "{}: expected groups of keys, got {}", root.where,
           root.describe());
  std::vector<std::string> of_spec;  // which may be in a file that another override names
  for (const std::string& text_of_one : overrides)
    if (is_spec_override(text_of_one))
      of_spec.push_back(text_of_one);
    else
      apply_override(root, text_of_one);
  include_hf_folder(root, name);
  include_model_file(root, name);
  include_spec(root, of_spec, [&](const Node& path) { return resolve_path(path, name).string(); });
  Inputs inputs;
  KeyReader reader(root);
  all_keys(reader, inputs);
  reader.finish();
  complete(inputs, name);
  return inputs;
}

Inputs load_inputs(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_inputs(read_yaml_file(path), path, overrides);
}

void expand_patterns(data::DataOptions& data, const std::string& name) {
  if (data.format == data::Format::random) return;
  // The resolved inputs must be readable again, and parse_tree accepts 20,000 values in a MiB.
  constexpr std::size_t most_files = 9'000;
  constexpr std::size_t most_name_bytes = std::size_t{800} << 10U;
  std::size_t count = 0, bytes = 0;
  const auto expand = [&](std::vector<std::string>& names, const std::string& key) {
    std::vector<std::string> expanded;
    for (const std::string& word : names)
      for (std::string& file : matching_files(word, data.format, name + ": " + key)) {
        bytes += file.size();
        expanded.push_back(std::move(file));
      }
    count += expanded.size();
    validate(count <= most_files && bytes <= most_name_bytes,
             "{}: {}: {} data files with names of {} bytes are too many (at most {} and {}); "
             "`llamesh tokenize` makes one file of many",
             name, key, count, bytes, most_files, most_name_bytes);
    names = std::move(expanded);
  };
  expand(data.train, "data.train");
  for (auto& source : data.sources) expand(source.files, "data.train");
  expand(data.validation, "data.validation");
}

std::string to_yaml(const Inputs& inputs) {
  KeyWriter writer;
  Inputs copy = inputs;  // the list of keys also reads, so it takes non-const variables
  all_keys(writer, copy);
  return writer.text();
}

}  // namespace llamesh::config
