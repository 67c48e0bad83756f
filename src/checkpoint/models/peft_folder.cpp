#include "checkpoint/models/peft_folder.hpp"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/format/state_reader.hpp"
#include "checkpoint/models/base_model.hpp"
#include "checkpoint/models/hf_new_folder.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/text.hpp"
#include "model/description/config_json.hpp"
#include "model/description/lora.hpp"

namespace llamesh::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* weights_name = "adapter_model.safetensors";
constexpr std::string_view peft_prefix = "base_model.model.";  // before the base model's own names

/// Returns the tensors of a folder with the table's adapters, in its order.
model::StateDict peft_tensors(const model::ModelConfig& config,
                              const model::ParameterTable& table) {
  auto dict = model::adapter_state_dict(config, table);
  for (auto& tensor : dict) tensor.name.insert(0, peft_prefix);
  return dict;
}

fs::path weights_in(const fs::path& folder) {
  std::error_code ignored;
  validate(fs::exists(folder / weights_name, ignored) ||
               !fs::exists(folder / "adapter_model.bin", ignored),
           "{} has adapter_model.bin only, which is not read; save the adapters again with PEFT's "
           "save_pretrained, which writes {}",
           folder.string(), weights_name);
  return folder / weights_name;
}

class AdaptedModel final : public StoredModel {
 public:
  AdaptedModel(std::unique_ptr<StoredModel> base, const fs::path& folder,
               const model::ModelConfig& config, const model::ParameterTable& table)
      : base_(std::move(base)), folder_(folder, config, table), base_ids_(table.parameters.size()) {
    const auto ids = model::base_parameters(table);
    for (std::size_t i = 0; i < ids.size(); ++i)
      base_ids_[model::index(ids[i])] = static_cast<model::ParameterId>(i);
  }
  void read(model::ParameterId parameter, const BoxRange& range,
            std::span<float> values) const override {
    if (const auto base = base_ids_[model::index(parameter)])
      return base_->read(*base, range, values);
    folder_.read(parameter, range, values);
  }

 private:
  std::unique_ptr<StoredModel> base_;
  PeftFolder folder_;
  std::vector<std::optional<model::ParameterId>> base_ids_;  ///< none: an adapter
};

/// Returns the values of a tensor in the folder's order.
std::vector<float> read_tensor(const StoredModel& model, const model::StateDictTensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(numel(tensor.shape))), ours;
  for (const auto& part : tensor.parts) {
    ours.resize(static_cast<std::size_t>(part.in_parameter.numel()));
    const BoxRange all{part.in_parameter, 0, part.in_parameter.numel()};
    model.read(part.parameter, all, ours);
    model::for_each_stored(
        part, tensor.shape, all,
        [&](const model::StoredRun& run, std::int64_t at, std::int64_t /*stride*/) {
          std::copy_n(ours.begin() + at, run.count, values.begin() + run.begin);
        });
  }
  return values;
}

/// Writes all adapters, one after the other.
void write_adapters(const StoredModel& model, const model::StateDict& dict, const fs::path& path,
                    StoredType type) {
  std::vector<StoredTensor> tensors;
  for (const auto& tensor : dict)
    tensors.push_back({tensor.name, std::string(name_of(type)), tensor.shape, 0, 0});
  const auto header = safetensors_header(tensors);
  auto out = Descriptor::to_write(path, O_WRONLY | O_CREAT | O_EXCL);
  out.write(0, header.data(), std::ssize(header));
  for (std::size_t i = 0; i < dict.size(); ++i) {
    const auto values = read_tensor(model, dict[i]);
    std::vector<std::uint8_t> bytes(values.size() * static_cast<std::size_t>(size_of(type)));
    const auto lost = from_floats(type, values, bytes.data());
    validate(lost == 0, "{} elements of {} are too large for {}; export with --dtype bf16", lost,
             dict[i].name.substr(peft_prefix.size()), name_of(type));
    out.write(tensors[i].begin, bytes.data(), std::ssize(bytes));
  }
  out.sync();
}

/// Returns the options for PEFT, which matches the ends of names but no patterns: instead of
/// patterns it gets the names of all layers with adapters.
nlohmann::ordered_json options_for_peft(const model::ModelConfig& config,
                                        const model::ParameterTable& table) {
  auto json = to_adapter_config(*config.lora);
  json["fan_in_fan_out"] = config.family == "gpt2";  // transformers' Conv1D
  const bool has_patterns = std::ranges::any_of(config.lora->targets, [](const auto& target) {
    return target.find_first_of("*?[") != target.npos;
  });
  if (!has_patterns) return json;
  auto& names = json["target_modules"] = nlohmann::ordered_json::array();
  for (const auto& parameter : table.parameters)
    if (parameter.name.ends_with(model::lora_a_suffix))
      names.push_back(parameter.name.substr(0, parameter.name.rfind(model::lora_a_suffix)));
  return json;
}

/// Returns true if the folder has the weights that a checkpoint's adapters were trained on.
bool has_base_weights(const std::string& folder, const StoredModel& checkpoint,
                      model::ModelConfig config, const model::ParameterTable& table) {
  config.lora.reset();
  const auto plain = model::parameter_table(config);
  std::vector<model::ParameterId> all;
  for (std::size_t i = 0; i < plain.parameters.size(); ++i)
    all.push_back(static_cast<model::ParameterId>(i));
  try {
    const auto base = open_model(locate("hf:" + folder), config, plain);
    return hash_of_parameters(*base, plain, all) ==
           hash_of_parameters(checkpoint, table, model::base_parameters(table));
  } catch (const Error&) {
    return false;  // it is gone, or holds another model
  }
}

}  // namespace

PeftFolder::PeftFolder(const fs::path& folder, const model::ModelConfig& config,
                       const model::ParameterTable& table)
    : file_(weights_in(folder)) {
  const auto path = (folder / weights_name).string();
  std::set<std::string> extra;
  for (const auto& tensor : file_.tensors()) extra.insert(tensor.name);
  std::vector<std::string> names;
  for (auto& tensor : peft_tensors(config, table)) {
    names.push_back(tensor.name);
    const auto* stored = file_.find(tensor.name);
    validate(stored != nullptr, "{} has no '{}'{}; it is for another base model", path, tensor.name,
             did_you_mean(tensor.name, {extra.begin(), extra.end()}));
    validate(stored->shape == tensor.shape,
             "{}: '{}' has shape ({}) where the model takes ({}); it is for another base model",
             path, tensor.name, fmt::join(stored->shape, ", "), fmt::join(tensor.shape, ", "));
    validate(stored_type(stored->dtype).has_value(), "{}: '{}' is {}; {}", path, tensor.name,
             excerpt(stored->dtype), readable_types);
    extra.erase(tensor.name);
    for (const auto& part : tensor.parts) tensors_[part.parameter] = dict_.size();
    dict_.push_back(std::move(tensor));
  }
  validate(extra.empty(), "{} has '{}', which the model does not{}; it is for another base model",
           path, extra.empty() ? "" : excerpt(*extra.begin()),
           extra.empty() ? "" : did_you_mean(*extra.begin(), names));
}

void PeftFolder::read(model::ParameterId parameter, const BoxRange& range,
                      std::span<float> values) const {
  const auto& tensor = dict_[tensors_.at(parameter)];
  const auto& stored = *file_.find(tensor.name);
  for (const auto& part : tensor.parts) {
    if (part.parameter != parameter) continue;
    model::for_each_stored(
        part, tensor.shape, range,
        [&](const model::StoredRun& run, std::int64_t at, std::int64_t /*stride*/) {
          const auto to = values.subspan(static_cast<std::size_t>(at));
          file_.read(stored, run.begin, to.first(static_cast<std::size_t>(run.count)));
        });
  }
}

std::unique_ptr<StoredModel> with_adapters(std::unique_ptr<StoredModel> base,
                                           const fs::path& folder, const model::ModelConfig& config,
                                           const model::ParameterTable& table) {
  return std::make_unique<AdaptedModel>(std::move(base), folder, config, table);
}

void export_adapters(const fs::path& checkpoint, const fs::path& target, StoredType type,
                     const std::string& base, const comm::Communicator& world) {
  NewFolder folder(target, world);
  comm::agree(world, [&] {
    if (world.rank() != 0) return;
    auto manifest = read_manifest(checkpoint);
    const auto config = model::parse_config_json(manifest.progress.model_config, "model_config");
    const auto table = model::parameter_table(config);
    const auto referred = manifest.progress.base;
    const auto model = open_model(checkpoint, std::move(manifest), table);
    write_adapters(*model, peft_tensors(config, table), folder.path() / weights_name, type);
    auto json = options_for_peft(config, table);
    if (referred) {
      json["base_model_name_or_path"] = referred->path;
    } else if (!base.empty() && has_base_weights(base, *model, config, table)) {
      json["base_model_name_or_path"] = base;
    } else {
      spdlog::warn(
          "base model not found: set model.hf to the folder the adapters were trained on, or "
          "export the whole model with llamesh convert --merge");
    }
    write_durably(folder.path() / model::adapter_config_name, json.dump(2) + "\n");
  });
  folder.commit();
}

}  // namespace llamesh::checkpoint
