#include "config/key_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

namespace llamesh::config {
namespace {

/// A name in transformers, PEFT, torchtitan, Megatron-LM, DeepSpeed or nanoGPT, and its equivalent
/// here: quoted names that the user may have meant, or advice.
struct ForeignName {
  std::string_view theirs;
  std::string_view ours;
};

constexpr std::string_view accumulation =
    "set 'train.global_batch' to ranks x 'train.micro_batch' x accumulated micro-batches";
constexpr std::string_view batch =
    "'train.micro_batch' (of a rank) or 'train.global_batch' (of a step)";

constexpr std::array keys{
    ForeignName{"accumulate_grad_batches", accumulation},
    ForeignName{"activation_checkpoint", "'memory.activation_checkpointing'"},
    ForeignName{"adam_beta1", "'optimizer.betas'"},
    ForeignName{"adam_beta2", "'optimizer.betas'"},
    ForeignName{"adam_epsilon", "'optimizer.eps'"},
    ForeignName{"batch_size", batch},
    ForeignName{"beta1", "'optimizer.betas'"},
    ForeignName{"beta2", "'optimizer.betas'"},
    ForeignName{"bf16", "'precision.parameters: bf16'"},
    ForeignName{"block_size", "'data.sequence_length'"},
    ForeignName{"bnb_4bit_quant_type", "'model.lora.base: nf4'"},
    ForeignName{"clip_grad", "'optimizer.clip_norm'"},
    ForeignName{"context_length", "'data.sequence_length'"},
    ForeignName{"data.path", "'data.train'"},
    ForeignName{"data_path", "'data.train'"},
    ForeignName{"dataset", "'data.train'"},
    ForeignName{"deepspeed", "'sharding.strategy'"},
    ForeignName{"dpo_beta", "'train.beta'"},
    ForeignName{"dtype", "'precision.parameters'"},
    ForeignName{"early_stopping_patience", "'train.early_stop.patience'"},
    ForeignName{"early_stopping_threshold", "'train.early_stop.min_delta'"},
    ForeignName{"eval_interval", "'evaluate.every_steps'"},
    ForeignName{"eval_iters", "'evaluate.batches'"},
    ForeignName{"eval_steps", "'evaluate.every_steps'"},
    ForeignName{"fsdp", "'sharding.strategy: full_shard'"},
    ForeignName{"global_batch_size", "'train.global_batch'"},
    ForeignName{"grad_clip", "'optimizer.clip_norm'"},
    ForeignName{"gradient_accumulation_steps", accumulation},
    ForeignName{"gradient_checkpointing", "'memory.activation_checkpointing'"},
    ForeignName{"learning_rate", "'optimizer.lr'"},
    ForeignName{"load_best_model_at_end", "'checkpoint.keep_best'"},
    ForeignName{"load_in_4bit", "'model.lora.base: nf4'"},
    ForeignName{"load_in_8bit", "'model.lora.base: int8'"},
    ForeignName{"local_batch_size", "'train.micro_batch'"},
    ForeignName{"log_interval", "'log.every_steps'"},
    ForeignName{"logging_steps", "'log.every_steps'"},
    ForeignName{"lora_alpha", "'model.lora.alpha'"},
    ForeignName{"loss_type", "'train.objective'"},
    ForeignName{"lr_scheduler_type", "'schedule.name'"},
    ForeignName{"max_eval_samples", "'evaluate.sequences'"},
    ForeignName{"max_grad_norm", "'optimizer.clip_norm'"},
    ForeignName{"max_iters", "'train.steps'"},
    ForeignName{"max_lr", "'optimizer.lr'"},
    ForeignName{"max_norm", "'optimizer.clip_norm'"},
    ForeignName{"max_seq_length", "'data.sequence_length'"},
    ForeignName{"max_steps", "'train.steps'"},
    ForeignName{"mesh.axes.data", "'mesh.axes.shard' or 'mesh.axes.replicate'"},
    ForeignName{"mesh.axes.ddp", "'mesh.axes.replicate'"},
    ForeignName{"mesh.axes.dp", "'mesh.axes.shard' or 'mesh.axes.replicate'"},
    ForeignName{"mesh.axes.dp_replicate", "'mesh.axes.replicate'"},
    ForeignName{"mesh.axes.dp_shard", "'mesh.axes.shard'"},
    ForeignName{"mesh.axes.fsdp", "'mesh.axes.shard'"},
    ForeignName{"mesh.axes.model", "'mesh.axes.tensor'"},
    ForeignName{"mesh.axes.pp", "'mesh.axes.pipeline'"},
    ForeignName{"mesh.axes.tp", "'mesh.axes.tensor'"},
    ForeignName{"metric_for_best_model", "'evaluate.best_by'"},
    ForeignName{"micro_batch_size", "'train.micro_batch'"},
    ForeignName{"min_lr", "'schedule.min_lr_ratio' (of optimizer.lr)"},
    ForeignName{"model_name_or_path", "'model.hf'"},
    ForeignName{"num_epochs", "'train.epochs'"},
    ForeignName{"num_layers_per_virtual_pipeline_stage", "'pipeline.chunks' (of a stage)"},
    ForeignName{"num_train_epochs", "'train.epochs'"},
    ForeignName{"num_warmup_steps", "'schedule.warmup_steps'"},
    ForeignName{"optim", "'optimizer.name'"},
    ForeignName{"out_dir", "'run.folder'"},
    ForeignName{"output_dir", "'run.folder'"},
    ForeignName{"per_device_train_batch_size", "'train.micro_batch'"},
    ForeignName{"pipeline_model_parallel_size", "'mesh.axes.pipeline'"},
    ForeignName{"pipeline_parallel_degree", "'mesh.axes.pipeline'"},
    ForeignName{"pp", "'mesh.axes.pipeline'"},
    ForeignName{"precision", "'precision.parameters'"},
    ForeignName{"pref_beta", "'train.beta'"},
    ForeignName{"pref_loss", "'train.objective'"},
    ForeignName{"r", "'model.lora.rank'"},
    ForeignName{"ref_model", "'reference.hf'"},
    ForeignName{"report_to", "'log.tensorboard'"},
    ForeignName{"resume_from_checkpoint", "'checkpoint.resume'"},
    ForeignName{"rl", "'train.objective: dpo'"},
    ForeignName{"save_interval", "'checkpoint.every_steps'"},
    ForeignName{"save_steps", "'checkpoint.every_steps'"},
    ForeignName{"save_top_k", "'checkpoint.keep_best'"},
    ForeignName{"save_total_limit", "'checkpoint.keep'"},
    ForeignName{"seq_len", "'data.sequence_length'"},
    ForeignName{"seq_length", "'data.sequence_length'"},
    ForeignName{"sync_steps", "'optimizer.outer.every_steps'"},
    ForeignName{"target_modules", "'model.lora.targets'"},
    ForeignName{"tensor_model_parallel_size", "'mesh.axes.tensor'"},
    ForeignName{"tensor_parallel_size", "'mesh.axes.tensor'"},
    ForeignName{"torch_dtype", "'precision.parameters'"},
    ForeignName{"tp_size", "'mesh.axes.tensor'"},
    ForeignName{"train_batch_size", "'train.global_batch'"},
    ForeignName{"train_iters", "'train.steps'"},
    ForeignName{"train_micro_batch_size_per_gpu", "'train.micro_batch'"},
    ForeignName{"wandb", "'log.tensorboard', whose files wandb reads"},
    ForeignName{"warmup", "'schedule.warmup_steps'"},
    ForeignName{"warmup_iters", "'schedule.warmup_steps'"},
    ForeignName{"warmup_ratio", "'schedule.warmup_steps', a number of steps"},
    ForeignName{"weight_decay_rate", "'optimizer.weight_decay'"},
    ForeignName{"zero_hpz_partition_size", "'sharding.reshard_after_forward', a number of ranks"},
    ForeignName{"zero_quantized_gradients", "'sharding.reduce_dtype'"},
    ForeignName{"zero_quantized_weights", "'sharding.gather'"},
};

constexpr std::array values{
    ForeignName{"adam", "adamw"},         ForeignName{"bfloat16", "bf16"},
    ForeignName{"ddp", "no_shard"},       ForeignName{"float32", "fp32"},
    ForeignName{"fsdp", "full_shard"},    ForeignName{"full", "full_shard"},
    ForeignName{"hsdp", "hybrid_shard"},  ForeignName{"torch.bfloat16", "bf16"},
    ForeignName{"torch.float32", "fp32"}, ForeignName{"zero2", "shard_grad_op"},
    ForeignName{"zero3", "full_shard"},
};

std::string_view find(std::span<const ForeignName> names, std::string_view name) {
  const auto found = std::ranges::find(names, name, &ForeignName::theirs);
  return found == names.end() ? std::string_view() : found->ours;
}

}  // namespace

std::string hint_for_key(std::string_view key) {
  auto ours = find(keys, key);
  if (ours.empty()) ours = find(keys, key.substr(key.rfind('.') + 1));
  if (ours.empty()) return "";
  return ours.starts_with('\'') ? fmt::format("; did you mean {}?", ours)
                                : fmt::format("; {}", ours);
}

std::string_view value_for(std::string_view theirs) {
  return find(values, theirs);
}

}  // namespace llamesh::config
