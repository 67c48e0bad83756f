#include "model/families/llama_like.hpp"

#include "core/error.hpp"
#include "core/text.hpp"

namespace llamesh::model {
namespace {

RopeScaling read_yarn(const ConfigKeys& keys, const ConfigKeys& rope) {
  for (const auto* key : {"mscale", "mscale_all_dim"})
    validate(!rope.has(key), "{}: {} is {}; llamesh computes yarn with attention_factor only",
             rope.name(), key, rope.shown(key));
  RopeScaling s{.rope_type = RopeType::yarn, .factor = rope.number("factor")};
  const char* const original = "original_max_position_embeddings";
  s.original_max_position_embeddings =
      rope.has(original) ? rope.size(original) : keys.size("max_position_embeddings");
  s.attention_factor = rope.number("attention_factor", s.attention_factor);
  s.beta_fast = rope.number("beta_fast", s.beta_fast);
  s.beta_slow = rope.number("beta_slow", s.beta_slow);
  s.truncate = rope.flag("truncate", s.truncate);
  return s;
}

}  // namespace

void read_rope(const ConfigKeys& keys, ModelConfig& c) {
  const auto check_whole_heads = [](const ConfigKeys& at) {
    validate(at.number("partial_rotary_factor", 1) == 1,
             "{}: partial_rotary_factor is {}; llamesh rotates whole heads", at.name(),
             at.shown("partial_rotary_factor"));
  };
  check_whole_heads(keys);
  c.rope_theta = keys.number("rope_theta", c.rope_theta);
  const char* const key = keys.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (!keys.has(key)) return;
  const auto rope = keys.object(key);
  check_whole_heads(rope);
  c.rope_theta = rope.number("rope_theta", c.rope_theta);
  const auto type = rope.text(rope.has("rope_type") ? "rope_type" : "type");
  if (type == "default") return;
  if (type == "linear")
    c.rope_scaling = RopeScaling{.rope_type = RopeType::linear, .factor = rope.number("factor")};
  else if (type == "llama3")
    c.rope_scaling = RopeScaling{
        .rope_type = RopeType::llama3,
        .factor = rope.number("factor"),
        .low_freq_factor = rope.number("low_freq_factor"),
        .high_freq_factor = rope.number("high_freq_factor"),
        .original_max_position_embeddings = rope.size("original_max_position_embeddings")};
  else if (type == "yarn")
    c.rope_scaling = read_yarn(keys, rope);
  else
    fail(ExitCode::bad_input,
         "{}: rope_type is '{}'; llamesh computes default, linear, llama3 and yarn", rope.name(),
         excerpt(type));
}

void write_rope(const ModelConfig& c, nlohmann::ordered_json& json) {
  json["rope_theta"] = c.rope_theta;
  if (!c.rope_scaling) return;
  const auto& s = *c.rope_scaling;
  auto& rope = json["rope_scaling"];
  switch (s.rope_type) {
    case RopeType::linear:
      rope = {{"rope_type", "linear"}, {"factor", s.factor}};
      break;
    case RopeType::llama3:
      rope = {{"rope_type", "llama3"},
              {"factor", s.factor},
              {"low_freq_factor", s.low_freq_factor},
              {"high_freq_factor", s.high_freq_factor},
              {"original_max_position_embeddings", s.original_max_position_embeddings}};
      break;
    case RopeType::yarn:
      rope = {{"rope_type", "yarn"},
              {"factor", s.factor},
              {"original_max_position_embeddings", s.original_max_position_embeddings},
              {"beta_fast", s.beta_fast},
              {"beta_slow", s.beta_slow},
              {"truncate", s.truncate}};
      if (s.attention_factor > 0) rope["attention_factor"] = s.attention_factor;
  }
}

void check_rope(const ModelConfig& c) {
  validate(c.head_dim % 2 == 0, "model.head_dim is {}; rotary embedding needs an even number",
           c.head_dim);
  validate(c.rope_theta > 1, "model.rope_theta is {}; it must be above 1", c.rope_theta);
  if (!c.rope_scaling) return;
  const auto& s = *c.rope_scaling;
  validate(s.factor > 0, "model.rope_scaling.factor is missing");
  validate(s.rope_type == RopeType::linear || s.original_max_position_embeddings > 0,
           "model.rope_scaling.original_max_position_embeddings is missing");
  if (s.rope_type == RopeType::llama3)
    validate(s.high_freq_factor > s.low_freq_factor,
             "model.rope_scaling: high_freq_factor {} is not above low_freq_factor {}",
             s.high_freq_factor, s.low_freq_factor);
  if (s.rope_type == RopeType::yarn)
    validate(s.beta_fast > s.beta_slow,
             "model.rope_scaling: beta_fast {} is not above beta_slow {}", s.beta_fast,
             s.beta_slow);
}

}  // namespace llamesh::model
