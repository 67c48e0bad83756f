#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>

#include "config/inputs.hpp"
#include "core/enum_names.hpp"
#include "core/range.hpp"

namespace llamesh::config {

// The single list of all keys in an input file. `Io` is KeyReader or KeyWriter: reading, writing
// and the check for unknown keys all follow from it.

template <class Io>
void rope_keys(Io& io, model::RopeScaling& r) {
  io.key("rope_type", r.rope_type);
  io.key("factor", r.factor, at_least(0));
  if (r.rope_type == model::RopeType::llama3) {
    io.key("low_freq_factor", r.low_freq_factor, above(0));
    io.key("high_freq_factor", r.high_freq_factor, above(0));
  }
  if (r.rope_type != model::RopeType::linear)
    io.key("original_max_position_embeddings", r.original_max_position_embeddings, at_least(0));
  if (r.rope_type == model::RopeType::yarn || r.rope_type == model::RopeType::longrope)
    io.key("attention_factor", r.attention_factor, at_least(0));
  if (r.rope_type == model::RopeType::yarn) {
    io.key("beta_fast", r.beta_fast, above(0));
    io.key("beta_slow", r.beta_slow, above(0));
    io.key("truncate", r.truncate);
    io.key("mscale_all_dim", r.mscale_all_dim, at_least(0));
    io.key("llama_4_scaling_beta", r.llama_4_scaling_beta, at_least(0));
  }
  if (r.rope_type == model::RopeType::longrope) {
    io.key("short_factor", r.short_factor, above(0));
    io.key("long_factor", r.long_factor, above(0));
  }
}

template <class Io>
void shape_keys(Io& io, model::ModelConfig& m) {
  io.key("family", m.family);
  model::for_each_model_key([&]<class T>(const model::ModelKey<T>& key) {
    T& value = m.*key.member;
    if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, std::vector<std::string>>)
      io.key(key.name, value);
    else if constexpr (std::is_same_v<T, std::optional<model::RopeScaling>>)
      io.optional_section(key.name, value, [&](model::RopeScaling& r) { rope_keys(io, r); });
    else if constexpr (std::is_integral_v<T>)
      key.automatic ? io.automatic(key.name, value, key.range) : io.key(key.name, value, key.range);
    else
      io.key(key.name, value, key.range);
  });
}

template <class Io>
void lora_keys(Io& io, model::Lora& lora) {
  io.key("rank", lora.rank, at_least(1));
  io.key("alpha", lora.alpha, above(0));
  io.key("targets", lora.targets);
  io.key("rslora", lora.rslora);
  io.key("init", lora.init);
  io.key("dropout", lora.dropout, from_to(0, 1));
}

template <class Io>
void model_keys(Io& io, model::ModelConfig& m, checkpoint::PretrainedOptions& p) {
  io.handled("file");
  io.key("hf", p.hf);
  io.key("load_weights", p.load_weights);
  io.key("load", p.load);
  shape_keys(io, m);
  io.optional_section("lora", m.lora, [&](model::Lora& lora) {
    io.key("from", p.adapters);
    io.key("base", lora.base);
    lora_keys(io, lora);
  });
}

template <class Io>
void parallel_keys(Io& io, Inputs& in) {
  io.section("mesh", [&] {
    io.section("axes", [&] {
      io.automatic("replicate", in.mesh.replicate);
      io.automatic("shard", in.mesh.shard);
      io.key("pipeline", in.mesh.pipeline, at_least(1));
      io.key("expert", in.mesh.expert, at_least(1));
      io.key("context", in.mesh.context, at_least(1));
      io.key("tensor", in.mesh.tensor, at_least(1));
    });
    io.key("allow_expert_across_nodes", in.mesh.allow_expert_across_nodes);
    io.key("allow_tensor_across_nodes", in.mesh.allow_tensor_across_nodes);
    io.automatic("ranks_per_node", in.mesh.ranks_per_node);
  });
  io.section("pipeline", [&] {
    io.key("chunks", in.pipeline.chunks, at_least(1));
    io.automatic("layers", in.pipeline.layers, at_least(1));
  });
  io.section("tensor", [&] { io.key("residual", in.tensor.residual); });
  io.section("sharding", [&] {
    io.key("strategy", in.sharding.strategy);
    io.key("wrap", in.sharding.wrap.wrap);
    io.key("min_numel", in.sharding.wrap.min_numel, at_least(1));
    io.key("reshard_after_forward", in.sharding.reshard_after_forward);
    io.key("reduce", in.sharding.reduce);
    io.key("gather", in.sharding.gather);
    io.key("gather_within_node", in.sharding.gather_within_node);
    io.key("reduce_dtype", in.sharding.reduce_dtype);
    io.key("error_feedback", in.sharding.error_feedback);
    io.key("prefetch", in.sharding.prefetch, from_to(0, 4));
    io.bytes("prefetch_limit", in.sharding.prefetch_limit);
    io.key("offload", in.sharding.offload);
    io.key("keep_bf16_weights", in.sharding.keep_bf16_weights);
    io.key("spec", in.sharding.spec);
  });
  io.section("precision", [&] {
    io.key("parameters", in.precision.parameters);
    io.key("reduce", in.precision.reduce);
    io.key("linear", in.precision.linear);
  });
  io.section("memory", [&] {
    io.key("activation_checkpointing", in.memory.activation_checkpointing);
    io.key("full_checkpointing_layers", in.memory.full_checkpointing_layers, at_least(0));
    io.key("activation_offload", in.memory.activation_offload);
    io.automatic("loss_chunk", in.memory.loss_chunk);
    io.bytes("device_limit", in.memory.device_limit);
  });
}

template <class Io>
void training_keys(Io& io, Inputs& in) {
  io.section("data", [&] {
    io.words_or_groups("train", in.data.train, in.data.sources, [&](data::SourceOptions& source) {
      io.key("files", source.files);
      io.key("weight", source.weight, above_to(0, data::largest_weight));
    });
    io.key("validation", in.data.validation);
    io.key("format", in.data.format);
    io.key("tokenizer", in.data.tokenizer);
    io.key("chat_template", in.data.chat_template);
    io.key("loss_on", in.data.loss_on);
    io.key("reasoning", in.data.reasoning);
    io.section("columns", [&] {
      for (const auto& [name, member] : data::record_columns) io.key(name, in.data.columns.*member);
    });
    io.key("sequence_length", in.data.sequence_length, from_to(1, 1 << 24));
    io.key("order", in.data.order);
    io.key("token_dtype", in.data.token_dtype);
    io.key("packing", in.data.packing);
    io.key("document_mask", in.data.document_mask);
    io.key("eos_token", in.data.eos_token, from_to(-1, 2147483647));
  });
  io.section("optimizer", [&] {
    io.key("name", in.optimizer.name);
    io.key("lr", in.optimizer.lr, above(0));
    io.pair("betas", in.optimizer.beta1, in.optimizer.beta2, from_below(0, 1));
    io.key("eps", in.optimizer.eps, from_to(1e-30, 1));
    io.key("weight_decay", in.optimizer.weight_decay, at_least(0));
    io.key("clip_norm", in.optimizer.clip_norm, at_least(0));
    io.key("moments", in.optimizer.moments);
    io.section("muon", [&] {
      io.key("lr", in.optimizer.muon.lr, above(0));
      io.key("momentum", in.optimizer.muon.momentum, from_below(0, 1));
      io.key("nesterov", in.optimizer.muon.nesterov);
    });
    io.section("outer", [&] {
      auto& outer = in.optimizer.outer;
      io.key("every_steps", outer.every_steps, at_least(0));
      io.key("name", outer.name);
      io.key("lr", outer.lr, above(0));
      io.key("momentum", outer.momentum, from_below(0, 1));
      io.key("reduce_dtype", outer.reduce_dtype);
      io.key("error_feedback", outer.error_feedback);
      io.key("fragments", outer.fragments, at_least(1));
      io.key("delay_steps", outer.delay_steps, at_least(0));
      io.key("local_share", outer.local_share, from_to(0, 1));
    });
  });
  io.section("schedule", [&] {
    io.key("name", in.schedule.name);
    io.key("warmup_steps", in.schedule.warmup_steps, at_least(0));
    io.key("decay_steps", in.schedule.decay_steps, at_least(0));
    io.key("min_lr_ratio", in.schedule.min_lr_ratio, from_to(0, 1));
  });
  io.section("train", [&] {
    io.key("epochs", in.train.epochs, from_to(0, 1e6));
    if (in.train.epochs > 0) in.train.steps = 0;  // auto, unless it is given too
    io.automatic("steps", in.train.steps);
    io.key("micro_batch", in.train.micro_batch, from_to(1, 1 << 24));
    io.automatic("global_batch", in.train.global_batch, from_to(0, 1 << 24));
    io.section("early_stop", [&] {
      io.key("patience", in.train.early_stop.patience, at_least(0));
      io.key("min_delta", in.train.early_stop.min_delta, at_least(0));
    });
    io.key("objective", in.train.objective);
    io.key("beta", in.train.beta, above(0));
    io.automatic("threads", in.train.threads, from_to(0, 4096));
    io.key("freeze", in.train.trained.freeze);
    io.key("only", in.train.trained.only);
    io.key("on_nonfinite", in.train.on_nonfinite);
    io.key("reproducible", in.train.reproducible);
    io.automatic("reproducible_tensor", in.train.reproducible_tensor, from_to(0, 1 << 16));
    io.automatic("reproducible_context", in.train.reproducible_context, from_to(0, 1 << 16));
    io.key("gemm_sm_count_target", in.train.gemm_sm_count_target, from_to(0, 4096));
    io.key("gemm_table", in.train.gemm_table);
  });
  io.section("reference", [&] { io.key("hf", in.reference.hf); });
  io.section("evaluate", [&] {
    io.key("every_steps", in.evaluate.every_steps, at_least(0));
    io.key("sequences", in.evaluate.sequences, at_least(0));
    io.key("batches", in.evaluate.batches, at_least(0));
    io.named_words("files", in.evaluate.files);
    io.key("best_by", in.evaluate.best_by);
    io.key("prompts", in.evaluate.prompts);
    io.key("chat", in.evaluate.chat);
    io.key("max_tokens", in.evaluate.max_tokens, at_least(1));
  });
}

template <class Io>
void all_keys(Io& io, Inputs& in) {
  io.section("run", [&] {
    io.key("name", in.run.name);
    io.key("folder", in.run.folder);
    io.key("seed", in.run.seed, at_least(0));
    io.key("notes", in.run.notes);
    io.key("tags", in.run.tags);
  });
  io.section("model", [&] { model_keys(io, in.model, in.pretrained); });
  parallel_keys(io, in);
  training_keys(io, in);
  io.section("checkpoint", [&] {
    io.key("every_steps", in.checkpoint.every_steps, at_least(0));
    io.key("every_minutes", in.checkpoint.every_minutes, at_least(0));
    io.key("keep", in.checkpoint.keep, at_least(1));
    io.key("keep_every", in.checkpoint.keep_every, at_least(0));
    io.key("keep_best", in.checkpoint.keep_best, from_to(0, 1000));
    io.key("resume", in.checkpoint.resume);
    io.key("base", in.checkpoint.base);
    io.key("async", in.checkpoint.async);
    io.section("memory", [&] {
      io.key("every_steps", in.checkpoint.memory.every_steps, at_least(0));
      io.key("partner", in.checkpoint.memory.partner);
      io.bytes("limit", in.checkpoint.memory.limit);
    });
    io.key("early_write_back", in.checkpoint.early_write_back);
    io.key("mpi_io_hints", in.checkpoint.mpi_io_hints);
  });
  io.section("log", [&] {
    io.key("every_steps", in.log.every_steps, at_least(1));
    io.key("tensorboard", in.log.tensorboard);
    io.key("report", in.log.report);
    io.key("ranks", in.log.ranks);
    io.key("openmetrics", in.log.openmetrics);
    io.key("experts", in.log.experts);
    io.key("layers_every", in.log.layers_every, at_least(0));
  });
  io.section("debug", [&] {
    io.key("contract", in.debug.contract);
    io.key("replica_hash_every", in.debug.replica_hash_every, at_least(0));
    io.key("replay_every", in.debug.replay_every, at_least(0));
    io.key("state_hash_every", in.debug.state_hash_every, at_least(0));
    io.key("on_mismatch", in.debug.on_mismatch);
  });
  io.section("profile", [&] { io.key("steps", in.profile.steps); });
}

}  // namespace llamesh::config
