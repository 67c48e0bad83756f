#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_options.hpp"
#include "data/chat_template.hpp"
#include "data/data_options.hpp"
#include "model/memory_options.hpp"
#include "optim/optimizer_options.hpp"
#include "sharding/sharding_options.hpp"
#include "train/run/run_inputs.hpp"

namespace llamesh::config {

/// Names for an enum's values in the inputs.
template <class E>
struct EnumNames {
  std::vector<std::pair<std::string_view, E>> words;
};

inline EnumNames<model::RopeType> names(model::RopeType) {
  using enum model::RopeType;
  return {{{"llama3", llama3}, {"linear", linear}, {"yarn", yarn}}};
}

inline EnumNames<model::LoraInit> names(model::LoraInit) {
  using enum model::LoraInit;
  return {{{"kaiming_uniform", kaiming_uniform}, {"gaussian", gaussian}}};
}

inline EnumNames<sharding::Strategy> names(sharding::Strategy) {
  using enum sharding::Strategy;
  EnumNames<sharding::Strategy> result;
  for (const auto s : {full_shard, shard_grad_op, no_shard, hybrid_shard, hybrid_shard_zero2})
    result.words.emplace_back(sharding::name_of(s), s);
  return result;
}

inline EnumNames<sharding::ResidualLayout> names(sharding::ResidualLayout) {
  using enum sharding::ResidualLayout;
  return {{{"sequence", sequence}, {"whole", whole}, {"hidden", hidden}}};
}

inline EnumNames<sharding::Offload> names(sharding::Offload) {
  using enum sharding::Offload;
  return {{{"none", none}, {"optimizer", optimizer}, {"all", all}}};
}

inline EnumNames<sharding::KeepBf16Weights> names(sharding::KeepBf16Weights) {
  using enum sharding::KeepBf16Weights;
  return {{{"auto", automatic}, {"true", yes}, {"false", no}}};
}

inline EnumNames<sharding::Wrap> names(sharding::Wrap) {
  using enum sharding::Wrap;
  return {{{"layer", layer}, {"size", size}, {"none", none}}};
}

inline EnumNames<train::ExpertMetrics> names(train::ExpertMetrics) {
  using enum train::ExpertMetrics;
  return {{{"total", total}, {"per_layer", per_layer}}};
}

inline EnumNames<DType> names(DType) {
  return {{{name_of(DType::f32), DType::f32}, {name_of(DType::bf16), DType::bf16}}};
}

inline EnumNames<model::ActivationCheckpointing> names(model::ActivationCheckpointing) {
  using enum model::ActivationCheckpointing;
  return {{{"none", none}, {"selective", selective}, {"full", full}}};
}

inline EnumNames<checkpoint::ReadBy> names(checkpoint::ReadBy) {
  return {{{"each_rank", checkpoint::ReadBy::each_rank}, {"rank0", checkpoint::ReadBy::rank0}}};
}

inline EnumNames<checkpoint::PartnerCopy> names(checkpoint::PartnerCopy) {
  using enum checkpoint::PartnerCopy;
  return {{{"auto", automatic}, {"off", off}}};
}

inline EnumNames<checkpoint::BaseWeights> names(checkpoint::BaseWeights) {
  using enum checkpoint::BaseWeights;
  return {{{"reference", reference}, {"include", include}}};
}

inline EnumNames<data::Format> names(data::Format) {
  using enum data::Format;
  return {{{"auto", automatic},
           {"text", text},
           {"jsonl", jsonl},
           {"tokens", tokens},
           {"megatron", megatron},
           {"random", random}}};
}

inline EnumNames<data::ChatTemplate> names(data::ChatTemplate) {
  EnumNames<data::ChatTemplate> result{{{"auto", data::ChatTemplate::automatic}}};
  const auto templates = data::chat_template_names();
  result.words.insert(result.words.end(), templates.begin(), templates.end());
  return result;
}

inline EnumNames<data::LossOn> names(data::LossOn) {
  using enum data::LossOn;
  return {{{"assistant", assistant}, {"last_assistant", last_assistant}, {"all", all}}};
}

inline EnumNames<data::Reasoning> names(data::Reasoning) {
  return {{{"refuse", data::Reasoning::refuse}, {"drop", data::Reasoning::drop}}};
}

inline EnumNames<data::Order> names(data::Order) {
  return {{{"shuffled", data::Order::shuffled}, {"sequential", data::Order::sequential}}};
}

inline EnumNames<data::Packing> names(data::Packing) {
  using enum data::Packing;
  return {{{"none", none}, {"concatenate", concatenate}, {"best_fit", best_fit}}};
}

inline EnumNames<data::TokenDtype> names(data::TokenDtype) {
  using enum data::TokenDtype;
  return {{{"auto", from_header}, {"uint16", uint16}, {"uint32", uint32}}};
}

inline EnumNames<train::OnMismatch> names(train::OnMismatch) {
  return {{{"stop", train::OnMismatch::stop}, {"heal", train::OnMismatch::heal}}};
}

inline EnumNames<optim::OptimizerName> names(optim::OptimizerName) {
  using enum optim::OptimizerName;
  return {{{"adamw", adamw}, {"sgd", sgd}, {"muon", muon}}};
}

inline EnumNames<optim::ScheduleName> names(optim::ScheduleName) {
  using enum optim::ScheduleName;
  return {{{"constant", constant}, {"linear", linear}, {"cosine", cosine}, {"wsd", wsd}}};
}

inline EnumNames<train::OnNonfinite> names(train::OnNonfinite) {
  return {{{"stop", train::OnNonfinite::stop}, {"skip", train::OnNonfinite::skip}}};
}

/// Returns the value that a word in the inputs stands for.
template <class E>
std::optional<E> value_of_name(std::string_view word) {
  for (const auto& [name, value] : names(E{}).words)
    if (name == word) return value;
  return std::nullopt;
}

}  // namespace llamesh::config
