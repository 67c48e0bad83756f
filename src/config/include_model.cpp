#include "config/include.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <ranges>
#include <set>
#include <string_view>
#include <utility>

#include "checkpoint/store/location.hpp"
#include "config/key_writer.hpp"
#include "config/keys.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "model/description/config_json.hpp"
#include "model/description/lora.hpp"

namespace llamesh::config {
namespace {

namespace fs = std::filesystem;

/// Formats a model's shape as keys in an input file.
Node tree_of(model::ModelConfig shape, const std::string& name) {
  KeyWriter writer;
  shape_keys(writer, shape);
  return parse_tree(writer.text(), name);
}

/// Removes `key` from the model's group if it is null or empty; otherwise returns its node (a
/// word), if any.
Node* find_path(Node& model, const std::string& key) {
  Node* node = model.find(key);
  if (node == nullptr) return nullptr;
  const bool is_word = node->kind == Node::Kind::scalar;
  validate(is_word || node->kind == Node::Kind::null, "{}: model.{}: expected a path, got {}",
           node->where, key, node->describe());
  if (is_word && !node->scalar.empty()) return node;
  std::erase_if(model.members, [&](const auto& member) { return member.first == key; });
  return nullptr;
}

/// Returns true if the text may be OWNER/NAME.
bool is_name_on_hub(const std::string& text) {
  return std::ranges::count(text, '/') == 1 && !text.starts_with('/') && !text.starts_with('.') &&
         !text.starts_with('~') && !text.ends_with('/');
}

/// Rejects a missing folder, and a run or checkpoint, which holds more than model.hf reads.
void check_hf_folder(const fs::path& folder, const std::string& where, const std::string& written) {
  std::error_code ignored;
  validate(fs::exists(folder, ignored), "{}: model.hf: {} does not exist{}", where, folder.string(),
           is_name_on_hub(written)
               ? fmt::format("; if you mean the model on the Hugging Face Hub, download it first: "
                             "hf download {0} --local-dir {0}",
                             written)
               : did_you_mean_path(folder));
  validate(fs::is_directory(folder, ignored),
           "{}: model.hf: {} is not a folder; give a Hugging Face folder", where, folder.string());
  validate(!checkpoint::holds_adapters_only(folder),
           "{0}: model.hf: {1} holds adapters only; name their base model there, and "
           "model.lora.from={1}",
           where, folder.string());
  validate(
      checkpoint::locate(folder.string()).kind == checkpoint::PathKind::hf_folder,
      "{0}: model.hf: {1} is not a Hugging Face folder but a run or a checkpoint; resume from it "
      "with checkpoint.resume={1}, or convert it: llamesh convert --from {1} --to FOLDER",
      where, folder.string());
}

void include_hf_folder(Node& model, Node& hf, const std::string& name) {
  hf.scalar = checkpoint::without_hf_prefix(hf.scalar);
  const std::string written_path = hf.scalar;
  const auto folder = fs::absolute(resolve_path(hf, name)).lexically_normal();
  hf.scalar = folder.string();
  const std::string where = hf.where;  // members are about to be added
  if (model.find("load_weights") == nullptr)
    model.members.emplace_back("load_weights", Node{Node::Kind::scalar, where, "true", {}, {}});
  Node below = tree_of(model::ModelConfig{}, name);
  // A run's config.yaml has every key that its version knew, and needs no folder.
  std::set<std::string_view> newer{"family"};
  model::for_each_model_key([&](const auto& key) {
    if (key.since == model::Since::later) newer.insert(key.name);
  });
  const auto written = [&](const auto& member) {
    return model.find(member.first) != nullptr || newer.contains(member.first);
  };
  if (std::ranges::all_of(below.members, written)) return;
  check_hf_folder(folder, where, written_path);
  below = tree_of(model::read_config_json(folder), (folder / "config.json").string());
  overlay(below, std::move(model));
  model = std::move(below);
}

void include_model_file(Node& model, const Node& file, const std::string& name) {
  const std::string path = resolve_path(file, name).string();
  std::error_code ignored;
  validate(fs::exists(path, ignored), "{}: model.file: '{}' does not exist{}", file.where, path,
           did_you_mean_path(path));
  Node below = parse_tree(read_yaml_file(path), path);
  validate(below.kind == Node::Kind::map, "{}: expected the keys of a model, got {}", below.where,
           below.describe());
  const Node* nested = below.find("file");
  validate(nested == nullptr, "{}: a model file cannot name another file; remove this key",
           nested ? nested->where : "");
  std::erase_if(model.members, [](const auto& member) { return member.first == "file"; });
  overlay(below, std::move(model));
  model = std::move(below);
}

/// Merges the adapter_config.json of the PEFT folder in `from` under the keys in model.lora.
void include_peft_folder(Node& lora, const std::string& name) {
  Node* from = lora.find("from");
  if (from == nullptr || from->scalar.empty()) return;
  const auto folder = fs::absolute(resolve_path(*from, name)).lexically_normal();
  from->scalar = folder.string();
  KeyWriter writer;
  auto adapters = model::Lora{};
  lora_keys(writer, adapters);
  Node below = parse_tree(writer.text(), name);
  const auto written = [&](const auto& member) { return lora.find(member.first) != nullptr; };
  if (std::ranges::all_of(below.members, written)) return;  // as in a run's config.yaml
  validate(model::is_peft_folder(folder), "{}: model.lora.from: {} has no {}; give a PEFT folder",
           from->where, folder.string(), model::adapter_config_name);
  adapters = model::read_adapter_config(folder);
  KeyWriter of_folder;
  lora_keys(of_folder, adapters);
  below = parse_tree(of_folder.text(), folder.string());
  overlay(below, std::move(lora));
  lora = std::move(below);
}

}  // namespace

bool sets(const std::vector<std::string>& overrides, const std::string& key) {
  Node root;
  for (const auto& text : overrides)
    if (!is_spec_override(text)) apply_override(root, text);
  const Node* node = &root;
  for (const auto part : key | std::views::split('.')) {
    node = node->find(std::string_view(part.begin(), part.end()));
    if (node == nullptr) return false;
  }
  return node->kind != Node::Kind::null;
}

fs::path resolve_path(const Node& path, const std::string& name) {
  return path.where == "command line" ? fs::path(path.scalar)
                                      : fs::path(name).parent_path() / path.scalar;
}

std::string drop_replaced(Node& root, const std::vector<std::string>& overrides,
                          const std::string& name) {
  const auto drop = [&](const char* group, auto condition) {
    std::vector<std::string> dropped;
    if (Node* node = root.find(group))
      std::erase_if(node->members, [&](const auto& member) {
        if (!condition(member.first)) return false;
        dropped.push_back(fmt::format("{}.{}", group, member.first));
        return true;
      });
    return dropped;
  };
  const bool steps = sets(overrides, "train.steps"), epochs = sets(overrides, "train.epochs");
  if (steps != epochs)
    drop("train", [&](const std::string& key) { return key == (steps ? "epochs" : "steps"); });
  const bool hf = sets(overrides, "model.hf"), file = sets(overrides, "model.file");
  if (!hf && !file) return "";
  const auto dropped =
      drop("model", [](const std::string& key) { return key != "load" && key != "lora"; });
  if (dropped.empty()) return "";
  return fmt::format("{} on the command line replaces the model in {}: {}",
                     hf ? "model.hf" : "model.file", name, fmt::join(dropped, ", "));
}

void include_reference(Node& root, const std::string& name) {
  Node* group = root.find("reference");
  Node* hf = group == nullptr ? nullptr : group->find("hf");
  if (hf == nullptr || hf->scalar.empty()) return;
  hf->scalar = checkpoint::without_hf_prefix(hf->scalar);
  hf->scalar = fs::absolute(resolve_path(*hf, name)).lexically_normal().string();
}

void include_model(Node& root, const std::string& name) {
  Node* model = root.find("model");
  if (model == nullptr) return;
  find_path(*model, "file");  // if it is empty, members move
  Node* hf = find_path(*model, "hf");
  Node* file = find_path(*model, "file");
  validate(hf == nullptr || file == nullptr,
           "{}: model.hf and model.file both give the model's shape; keep one of them",
           hf ? hf->where : "");
  if (hf != nullptr) include_hf_folder(*model, *hf, name);
  if (file != nullptr) include_model_file(*model, *file, name);
  if (Node* lora = model->find("lora")) include_peft_folder(*lora, name);
}

}  // namespace llamesh::config
