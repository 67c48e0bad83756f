#include "checkpoint/models/hf_model.hpp"

#include <fmt/ranges.h>

#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <set>

#include "core/error.hpp"
#include "core/text.hpp"
#include "model/description/family.hpp"

namespace llamesh::checkpoint {
namespace {

bool is_buffer(const std::string& name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.bias") ||
         name.ends_with(".attn.masked_bias");
}

}  // namespace

HfModel::HfModel(std::filesystem::path folder, const model::ModelConfig& config,
                 const model::ParameterTable& table)
    : weights_(std::move(folder)),
      family_(model::family_named(config.family)),
      names_(weights_, family_.base_prefix, table[table.embed_tokens.weight].name),
      table_(table),
      dict_(model::state_dict(config, table)),
      constants_(family_.constants(table)),
      places_(table.parameters.size()) {
  for (auto& tensor : dict_) {
    tensor.name = names_(tensor.name);
    if (weights_.is_mxfp4(tensor.name)) tensor = model::with_exchanged_dims(std::move(tensor));
  }
  for (auto& constant : constants_) constant.name = names_(constant.name);
  for (std::size_t t = 0; t < dict_.size(); ++t)
    for (std::size_t p = 0; p < dict_[t].parts.size(); ++p)
      places_[model::index(dict_[t].parts[p].parameter)].push_back({t, p});
  const auto head = names_(table[table.lm_head.module].name + ".weight");
  if (table.tied() && weights_.has(head)) stored_head_ = head;
}

/// Returns true for tensors in layers behind the model's last one.
bool HfModel::is_left_out(const std::string& name) const {
  if (const auto own = family_.prediction_prefix; !own.empty() && name.starts_with(own))
    return true;
  const auto& prefix = table_.layer_prefix;
  if (!family_.has_prediction_layers || !name.starts_with(prefix)) return false;
  const auto number = name.substr(prefix.size(), name.find('.', prefix.size()) - prefix.size());
  std::size_t layer = 0;
  const auto* const end = number.data() + number.size();
  return std::from_chars(number.data(), end, layer).ptr == end && layer >= table_.layers.size();
}

void HfModel::check_fits() const {
  const auto folder = weights_.folder().string();
  std::set<std::string> extra;
  int left_out = 0, other_parts = 0;
  for (const auto& name : weights_.names()) {
    if (names_.is_of_other_part(name))
      ++other_parts;
    else if (is_left_out(name))
      ++left_out;
    else if (!is_buffer(name) && !weights_.is_scale(name))
      extra.insert(name);
  }
  if (other_parts > 0)
    spdlog::info("{}: llamesh trains the language model; {} tensors of other parts are left out",
                 folder, other_parts);
  if (left_out > 0)
    spdlog::info(
        "{}: {} tensors behind layer {}, which predict further tokens, are left out; an export has "
        "none of them",
        folder, left_out, table_.layers.size() - 1);
  const auto check = [&](const std::string& name, const Shape& shape) {
    const auto& stored = weights_.tensor(name);
    validate(stored.shape == shape, "{}: '{}' has shape ({}) where the model has ({})", folder,
             name, fmt::join(stored.shape, ", "), fmt::join(shape, ", "));
    validate(stored_type(stored.dtype).has_value(), "{}: '{}' is {}; {}", folder, name,
             excerpt(stored.dtype), readable_types);
    extra.erase(name);
  };
  for (const auto& tensor : dict_) check(tensor.name, tensor.shape);
  for (const auto& constant : constants_) {
    if (!weights_.has(constant.name)) continue;
    check(constant.name, {});
    check_constant(constant);
  }
  if (!stored_head_.empty()) check(stored_head_, table_[table_.lm_head.weight].shape);
  validate(extra.empty(), "{} has '{}'{}, which the model does not", folder,
           extra.empty() ? "" : excerpt(*extra.begin()),
           extra.size() > 1 ? fmt::format(" and {} other tensors", extra.size() - 1) : "");
}

void HfModel::check_constant(const model::StoredConstant& constant) const {
  float value = 0;
  weights_.read(constant.name, 0, {&value, 1});
  constexpr float digits = 1.0F / 128;  // of bf16
  validate(std::abs(value - constant.value) <= digits * std::abs(constant.value),
           "{}: '{}' is {}; llamesh computes {}", weights_.folder().string(), constant.name, value,
           constant.value);
}

void HfModel::check_stored_head() const {
  if (stored_head_.empty()) return;
  constexpr std::int64_t piece = std::int64_t{1} << 20U;
  const auto head = table_.lm_head.weight;
  const auto whole = Box::whole(table_[head].shape);
  std::vector<float> values;
  for (std::int64_t begin = 0; begin < whole.numel(); begin += piece) {
    values.resize(static_cast<std::size_t>(std::min(piece, whole.numel() - begin)));
    read(head, {whole, begin, std::ssize(values)}, values);
  }
}

void HfModel::read(model::ParameterId parameter, const BoxRange& range,
                   std::span<float> values) const {
  std::vector<float> read;
  for (const auto& [t, p] : places_[model::index(parameter)]) {
    const auto& tensor = dict_[t];
    model::for_each_stored(tensor.parts[p], tensor.shape, range,
                           [&](const model::StoredRun& run, std::int64_t at, std::int64_t stride) {
                             auto to = values.subspan(static_cast<std::size_t>(at));
                             const auto length = static_cast<std::size_t>(run.span());
                             if (run.step == 1 && stride == 1)
                               return weights_.read(tensor.name, run.begin, to.first(length));
                             read.resize(length);
                             weights_.read(tensor.name, run.begin, read);
                             for (std::int64_t i = 0; i < run.count; ++i)
                               to[static_cast<std::size_t>(i * stride)] =
                                   read[static_cast<std::size_t>(i * run.step)];
                           });
  }
  if (!stored_head_.empty() && parameter == table_.lm_head.weight)
    check_tied_head(parameter, range, values);
}

StoredType HfModel::type(model::ParameterId parameter) const {
  std::optional<StoredType> type;
  for (const auto& [t, p] : places_[model::index(parameter)]) {
    const auto of_tensor = stored_type(weights_.tensor(dict_[t].name).dtype);
    const bool changes = of_tensor == StoredType::f64 || of_tensor == StoredType::f8_e4m3;
    if (changes || (type.has_value() && type != of_tensor)) return StoredType::f32;
    type = of_tensor;
  }
  return type.value_or(StoredType::f32);
}

/// Checks the head of a tied model that stores it too, over a range that has been read.
void HfModel::check_tied_head(model::ParameterId parameter, const BoxRange& range,
                              std::span<const float> values) const {
  const auto& shape = table_[parameter].shape;
  std::vector<float> head;
  for_each_run(shape, range, [&](std::int64_t begin, std::int64_t at, std::int64_t count) {
    head.resize(static_cast<std::size_t>(count));
    weights_.read(stored_head_, begin, head);
    const auto* embedding = values.data() + at;
    validate(std::memcmp(head.data(), embedding, head.size() * sizeof(float)) == 0,
             "config.json ties the head to the embedding, but {} is not {}; set "
             "tie_word_embeddings to false in it",
             stored_head_, table_[parameter].name);
  });
}

}  // namespace llamesh::checkpoint
