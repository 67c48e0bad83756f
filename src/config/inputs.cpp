#include "config/inputs.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "config/keys.hpp"
#include "config/reader.hpp"
#include "config/tree.hpp"
#include "config/writer.hpp"
#include "core/error.hpp"

namespace llamesh::config {
namespace {

std::string read_text(const std::string& path) {
  std::error_code ignored;
  validate(!std::filesystem::is_directory(path, ignored), "input file '{}' is a folder", path);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  validate(file.good(), "input file '{}' cannot be opened: {}", path, std::strerror(errno));
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  validate(!file.bad(), "input file '{}' cannot be read: {}", path, std::strerror(errno));
  return text;
}

/// Puts the keys of the file that `model.file` names below those written in `model`.
void include_model_file(Node& root, const std::string& name) {
  Node* model = root.find("model");
  Node* file = model ? model->find("file") : nullptr;
  if (file == nullptr) return;
  validate(file->kind == Node::Kind::scalar, "{}: model.file: expected a path, got {}", file->where,
           file->describe());
  const auto folder = file->where == "command line" ? std::filesystem::path()
                                                    : std::filesystem::path(name).parent_path();
  const std::string path = (folder / file->scalar).string();
  std::error_code ignored;
  validate(std::filesystem::exists(path, ignored), "{}: model.file: there is no file '{}'",
           file->where, path);
  Node below = parse_tree(read_text(path), path);
  validate(below.kind == Node::Kind::map, "{}: expected the keys of a model, got {}", below.where,
           below.describe());
  const Node* nested = below.find("file");
  validate(nested == nullptr, "{}: a model file cannot name another file",
           nested ? nested->where : "");
  std::erase_if(model->members, [](const auto& member) { return member.first == "file"; });
  overlay(below, std::move(*model));
  *model = std::move(below);
}

/// What no single key can say, and what stands for something else.
void complete(Inputs& in, const std::string& name) {
  const std::string& run = in.run.name;
  validate(!run.empty() && run.find('/') == std::string::npos && run[0] != '.',
           "{}: run.name: '{}' cannot name a folder; use a word without / that does not begin with "
           "a dot",
           name, run);
  if (in.run.folder.empty()) in.run.folder = "runs/" + run;
  in.model = in.model.resolved();
  validate(!in.data.train.empty(), "{}: data.train is missing; name at least one file", name);
  validate(in.evaluate.every_steps == 0 || !in.data.validation.empty(),
           "{}: evaluate.every_steps is {}, but data.validation is missing; name its files or set "
           "evaluate.every_steps to 0",
           name, in.evaluate.every_steps);
}

}  // namespace

Inputs parse_inputs(const std::string& text, const std::string& name,
                    const std::vector<std::string>& overrides) {
  Node root = parse_tree(text, name);
  validate(root.kind == Node::Kind::map, "{}: expected groups of keys, got {}", root.where,
           root.describe());
  for (const std::string& override_text : overrides) apply_override(root, override_text);
  include_model_file(root, name);
  Inputs inputs;
  Reader reader(root);
  all_keys(reader, inputs);
  reader.finish();
  complete(inputs, name);
  return inputs;
}

Inputs load_inputs(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_inputs(read_text(path), path, overrides);
}

std::string to_yaml(const Inputs& inputs) {
  Writer writer;
  Inputs copy = inputs;  // the list of keys serves reading too, so it takes variables
  all_keys(writer, copy);
  return writer.text();
}

}  // namespace llamesh::config
