#include "model/families/llama_like.hpp"

#include <cmath>
#include <optional>

#include "core/error.hpp"
#include "core/text.hpp"

namespace llamesh::model {
namespace {

constexpr const char* original_key = "original_max_position_embeddings";

/// Returns the length that the model had learned before its RoPE was scaled. transformers 5 prefers
/// the key beside the block, and without any takes max_position_embeddings.
std::int64_t original_positions(const ConfigKeys& keys, const ConfigKeys& rope) {
  if (keys.has(original_key)) return keys.size(original_key);
  return rope.has(original_key) ? rope.size(original_key) : keys.size("max_position_embeddings");
}

/// Returns yarn's attention_factor by DeepSeek's keys; 0 unless there are both, as in transformers.
double attention_factor_by_mscale(const ConfigKeys& rope, double factor) {
  const double mscale = rope.number("mscale", 0), all_dim = rope.number("mscale_all_dim", 0);
  if (mscale == 0 || all_dim == 0) return 0;
  const double growth = factor <= 1 ? 0 : 0.1 * std::log(factor);
  return (mscale * growth + 1) / (all_dim * growth + 1);
}

RopeScaling read_yarn(const LlamaVariant& variant, const ConfigKeys& rope) {
  RopeScaling s{.rope_type = RopeType::yarn, .factor = rope.number("factor")};
  s.attention_factor = attention_factor_by_mscale(rope, s.factor);
  s.attention_factor = rope.number("attention_factor", s.attention_factor);
  s.beta_fast = rope.number("beta_fast", s.beta_fast);
  s.beta_slow = rope.number("beta_slow", s.beta_slow);
  s.truncate = rope.flag("truncate", s.truncate);
  if (variant.has_latent_attention())
    s.mscale_all_dim = rope.number_from_0("mscale_all_dim", s.mscale_all_dim);
  if (constexpr const char* beta = "llama_4_scaling_beta"; variant.scales_queries) {
    validate(rope.has(beta), "{}: {} is missing", rope.name(), beta);
    s.llama_4_scaling_beta = rope.number_from_0(beta, 0);
    rope.ignore({"max_position_embeddings"});
  }
  return s;
}

RopeScaling read_llama3(const ConfigKeys& rope) {
  return {.rope_type = RopeType::llama3,
          .factor = rope.number("factor"),
          .low_freq_factor = rope.number("low_freq_factor"),
          .high_freq_factor = rope.number("high_freq_factor")};
}

/// The only scaling in its family, which transformers takes for longrope under its older names,
/// too.
RopeScaling read_longrope(const ConfigKeys& keys, const ConfigKeys& rope) {
  RopeScaling s{.rope_type = RopeType::longrope};
  // Without the key beside the block, transformers takes its own number.
  s.original_max_position_embeddings = keys.size(original_key);
  s.factor = static_cast<double>(keys.size("max_position_embeddings")) /
             static_cast<double>(s.original_max_position_embeddings);
  validate(rope.number("factor", s.factor) == s.factor,
           "{}: factor is {}, but max_position_embeddings {} / {} {} is {}; remove it", rope.name(),
           rope.shown("factor"), keys.shown("max_position_embeddings"), original_key,
           keys.shown(original_key), s.factor);
  s.attention_factor = rope.number("attention_factor", 0);
  s.short_factor = rope.numbers("short_factor");
  s.long_factor = rope.numbers("long_factor");
  return s;
}

/// Its original context is max_position_embeddings, whatever else a file says.
RopeScaling read_dynamic(const ConfigKeys& keys, const ConfigKeys& rope) {
  const auto original = keys.size("max_position_embeddings");
  validate(original_positions(keys, rope) == original,
           "{}: {} differs from max_position_embeddings {}; remove it", rope.name(), original_key,
           original);
  return {.rope_type = RopeType::dynamic,
          .factor = rope.number("factor"),
          .original_max_position_embeddings = original};
}

/// Returns the type of a block; empty if it has none.
std::string type_of(const ConfigKeys& rope) {
  return rope.text(rope.has("rope_type") ? "rope_type" : "type");
}

std::optional<RopeScaling> read_scaling(const LlamaVariant& variant, const ConfigKeys& keys,
                                        const ConfigKeys& rope) {
  rope.ignore({"type", original_key});
  const auto type = type_of(rope);
  if (type.empty() || type == "default") return std::nullopt;
  if (variant.has_longrope) {
    validate(type == "longrope" || type == "su" || type == "yarn",
             "{}: rope_type is '{}'; the family has default and longrope", rope.name(),
             excerpt(type));
    return read_longrope(keys, rope);
  }
  if (type == "linear")
    return RopeScaling{.rope_type = RopeType::linear, .factor = rope.number("factor")};
  if (type == "dynamic" && variant.has_dynamic_rope) return read_dynamic(keys, rope);
  validate(type == "llama3" || type == "yarn",
           "{}: rope_type is '{}'; llamesh computes default, linear, llama3 and yarn", rope.name(),
           excerpt(type));
  auto scaling = type == "yarn" ? read_yarn(variant, rope) : read_llama3(rope);
  scaling.original_max_position_embeddings = original_positions(keys, rope);
  return scaling;
}

/// Returns true for a block that says something: transformers passes over an empty one.
bool has_block(const ConfigKeys& keys, const char* key) {
  return keys.has(key) && !keys.find(key)->empty();
}

/// Refuses what versions of transformers read differently if there is a RoPE per type of layer.
void refuse_ambiguous_blocks(const ConfigKeys& keys, const ConfigKeys& rope) {
  validate(!has_block(keys, "rope_scaling") || !has_block(keys, "rope_parameters"),
           "{}: both rope_scaling and rope_parameters are set; remove one", keys.name());
  validate(!rope.has("type") || rope.has("rope_type"),
           "{}: type is set, but not rope_type; name it rope_type", rope.name());
}

void read_rotary_factor(const LlamaVariant& variant, const ConfigKeys& at, ModelConfig& c) {
  const auto* dims = variant.rotary_dims_name;
  if (dims != nullptr && at.has(dims))
    c.partial_rotary_factor = static_cast<double>(at.size(dims)) / static_cast<double>(c.head_dim);
  c.partial_rotary_factor = at.number("partial_rotary_factor", c.partial_rotary_factor);
  validate(
      c.partial_rotary_factor == 1 || variant.takes("partial_rotary_factor"),
      "{}: partial_rotary_factor is {}; llamesh computes the family {} with whole heads rotated",
      at.name(), at.shown("partial_rotary_factor"), c.family);
}

/// Reads rope_scaling or rope_parameters, which may have a block for each type of layer.
class RopeBlocks {
 public:
  RopeBlocks(const LlamaVariant& variant, const ConfigKeys& keys, ModelConfig& c)
      : variant_(variant), keys_(keys), c_(c) {}

  /// `window_theta`: of layers with a window.
  void read(const char* key, double& window_theta) {
    const auto rope = keys_.object(key);
    if (variant_.has_rope_per_type()) refuse_ambiguous_blocks(keys_, rope);
    if (!variant_.has_rope_per_type() || !rope.has("full_attention")) {
      validate(!variant_.needs_rope_theta || variant_.has_rope_per_type() ||
                   keys_.has("rope_theta") || rope.has("rope_theta"),
               "{}: rope_theta is missing", rope.name());
      c_.rope_scaling = read_block(rope, c_.rope_theta);
      return;
    }
    c_.rope_scaling = read_block(rope.object("full_attention"), c_.rope_theta);
    const bool scaled =
        rope.has("sliding_attention") && read_block(rope.object("sliding_attention"), window_theta);
    validate(!scaled, "{}: sliding_attention is scaled; llamesh scales RoPE of full_attention only",
             rope.name());
    rope.refuse_unknown();
  }

 private:
  std::optional<RopeScaling> read_block(const ConfigKeys& rope, double& theta) const {
    read_rotary_factor(variant_, rope, c_);
    theta = rope.number("rope_theta", theta);
    if (variant_.stretches_rope && type_of(rope) == "dynamic" && rope.has("alpha")) {
      theta *= stretch(rope);
      return std::nullopt;
    }
    auto scaling = read_scaling(variant_, keys_, rope);
    rope.refuse_unknown();
    return scaling;
  }

  double stretch(const ConfigKeys& rope) const {
    // transformers reads nothing else in such a block.
    rope.ignore({"factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", original_key});
    const auto dim = static_cast<double>(c_.head_dim > 0 ? c_.head_dim
                                                         : c_.hidden_size / c_.num_attention_heads);
    return std::pow(rope.number("alpha"), dim / (dim - 2));
  }

  const LlamaVariant& variant_;
  const ConfigKeys& keys_;
  ModelConfig& c_;
};

/// For layers with a window transformers 5 takes this base unless rope_parameters has another,
/// whatever rope_theta is; version 4 takes rope_theta.
constexpr double olmo3_window_theta = 5e5;

nlohmann::ordered_json scaling_block(const LlamaVariant& variant, const RopeScaling& s) {
  switch (s.rope_type) {
    case RopeType::linear:
      return {{variant.has_dynamic_rope ? "type" : "rope_type", "linear"}, {"factor", s.factor}};
    case RopeType::llama3:
      return {{"rope_type", "llama3"},
              {"factor", s.factor},
              {"low_freq_factor", s.low_freq_factor},
              {"high_freq_factor", s.high_freq_factor},
              {"original_max_position_embeddings", s.original_max_position_embeddings}};
    case RopeType::longrope: {
      // Some transformers versions refuse a block with further keys.
      nlohmann::ordered_json longrope{
          {"type", "longrope"}, {"short_factor", s.short_factor}, {"long_factor", s.long_factor}};
      if (s.attention_factor > 0) longrope["attention_factor"] = s.attention_factor;
      return longrope;
    }
    case RopeType::dynamic:
      // The families' own code wants these two keys, for linear as well.
      return {{"type", "dynamic"}, {"factor", s.factor}};
    case RopeType::yarn:
      break;
  }
  nlohmann::ordered_json yarn{
      {"rope_type", "yarn"},
      {"factor", s.factor},
      {"original_max_position_embeddings", s.original_max_position_embeddings},
      {"beta_fast", s.beta_fast},
      {"beta_slow", s.beta_slow},
      {"truncate", s.truncate}};
  if (s.attention_factor > 0) yarn["attention_factor"] = s.attention_factor;
  if (s.mscale_all_dim > 0) yarn["mscale_all_dim"] = s.mscale_all_dim;
  if (variant.scales_queries) yarn["llama_4_scaling_beta"] = s.llama_4_scaling_beta;
  return yarn;
}

}  // namespace

void read_rope(const LlamaVariant& variant, const ConfigKeys& keys, ModelConfig& c) {
  keys.ignore({"rope_scaling", "rope_parameters", original_key});
  read_rotary_factor(variant, keys, c);
  validate(
      !variant.needs_rope_theta || keys.has("rope_theta") || has_block(keys, "rope_parameters"),
      "{}: rope_theta is missing", keys.name());
  validate(!variant.needs_rope_scaling || has_block(keys, "rope_scaling") ||
               has_block(keys, "rope_parameters"),
           "{}: rope_scaling and rope_parameters are missing", keys.name());
  c.rope_theta = keys.number("rope_theta", c.rope_theta);
  const bool unscaled = variant.window_rope == WindowRope::unscaled;
  double window_theta = unscaled ? olmo3_window_theta : c.rope_local_base_freq;
  // If there are both, every version of transformers takes rope_scaling as a whole.
  const char* const key = has_block(keys, "rope_scaling") ? "rope_scaling" : "rope_parameters";
  if (has_block(keys, key)) RopeBlocks(variant, keys, c).read(key, window_theta);
  if (variant.window_rope == WindowRope::own_base) c.rope_local_base_freq = window_theta;
  validate(
      !unscaled || window_theta == c.rope_theta,
      "{}: rope_theta is {} for full_attention and {} for sliding_attention, which must be equal; "
      "set both in rope_parameters",
      keys.name(), c.rope_theta, window_theta);
}

void write_rope(const LlamaVariant& variant, const ModelConfig& c, nlohmann::ordered_json& json) {
  json["rope_theta"] = c.rope_theta;
  if (variant.takes("partial_rotary_factor"))
    json["partial_rotary_factor"] = c.partial_rotary_factor;
  if (c.rope_scaling && c.rope_scaling->rope_type == RopeType::longrope) {
    const auto original = c.rope_scaling->original_max_position_embeddings;
    json[original_key] = original;
    json["max_position_embeddings"] =
        std::llround(c.rope_scaling->factor * static_cast<double>(original));
  }
  if (c.rope_scaling && c.rope_scaling->rope_type == RopeType::dynamic)
    json["max_position_embeddings"] = c.rope_scaling->original_max_position_embeddings;
  const auto full = c.rope_scaling ? scaling_block(variant, *c.rope_scaling)
                                   : nlohmann::ordered_json{{"rope_type", "default"}};
  if (variant.window_rope != WindowRope::unscaled || c.rope_theta == olmo3_window_theta) {
    if (c.rope_scaling || variant.needs_rope_scaling) json["rope_scaling"] = full;
    return;
  }
  auto& types = json["rope_parameters"];
  types = {{"full_attention", full}, {"sliding_attention", {{"rope_type", "default"}}}};
  for (auto& block : types) block["rope_theta"] = c.rope_theta;
}

namespace {

void check_scaling(const LlamaVariant& variant, const ModelConfig& c) {
  const auto& s = *c.rope_scaling;
  const bool longrope = s.rope_type == RopeType::longrope;
  validate(longrope == variant.has_longrope,
           "model.rope_scaling.rope_type is {}; the family {} has {}", name_in_inputs(s.rope_type),
           c.family, variant.has_longrope ? "longrope only" : "linear, llama3 and yarn");
  const bool dynamic = s.rope_type == RopeType::dynamic;
  validate(!dynamic || variant.has_dynamic_rope,
           "model.rope_scaling.rope_type is dynamic, which the family {} does not have", c.family);
  validate(s.factor > 0, "model.rope_scaling.factor is missing");
  validate(
      !dynamic || (s.factor >= 1 && c.rotary_dims() > 2),
      "model.rope_scaling: factor is {} for {} rotated dims; dynamic needs 1 or more, and more "
      "than 2 dims",
      s.factor, c.rotary_dims());
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
  validate(s.llama_4_scaling_beta == 0 || variant.scales_queries,
           "model.rope_scaling.llama_4_scaling_beta is set, but the family {} has none", c.family);
  validate(
      s.mscale_all_dim == 0 || (variant.has_latent_attention() && s.rope_type == RopeType::yarn),
      "model.rope_scaling.mscale_all_dim is set, which is for yarn and latent attention");
  if (longrope)
    for (const auto& [name, factors] :
         {std::pair("short_factor", &s.short_factor), std::pair("long_factor", &s.long_factor)})
      validate(std::ssize(*factors) == c.rotary_dims() / 2,
               "model.rope_scaling.{} has {} numbers, but {} dims of a head rotate; it needs {}",
               name, factors->size(), c.rotary_dims(), c.rotary_dims() / 2);
}

}  // namespace

void check_rope(const LlamaVariant& variant, const ModelConfig& c) {
  validate(
      !variant.scales_queries || (c.rope_scaling && c.rope_scaling->rope_type == RopeType::yarn),
      "model.rope_scaling is {}; the family {} needs one of rope_type yarn",
      c.rope_scaling ? name_in_inputs(c.rope_scaling->rope_type) : "null", c.family);
  validate(c.head_dim % 2 == 0, "model.head_dim is {}; rotary embedding needs an even number",
           c.head_dim);
  validate(
      c.rotary_dims() % 2 == 0 && c.rotary_dims() > 0,
      "model.partial_rotary_factor {} rotates {} dims of head_dim {}; rotary embedding needs an "
      "even number",
      c.partial_rotary_factor, c.rotary_dims(), c.head_dim);
  validate(c.rope_theta > 1, "model.rope_theta is {}; it must be above 1", c.rope_theta);
  validate(c.rope_local_base_freq > 1, "model.rope_local_base_freq is {}; it must be above 1",
           c.rope_local_base_freq);
  if (c.rope_scaling) check_scaling(variant, c);
}

}  // namespace llamesh::model
