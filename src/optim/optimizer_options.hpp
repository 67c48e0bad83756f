#pragma once

#include <cstdint>

#include "core/dtype.hpp"
#include "core/enum_names.hpp"
#include "sharding/sharding_options.hpp"

namespace llamesh::optim {

enum class OptimizerName : std::uint8_t { adamw, sgd, muon };
inline EnumNames<OptimizerName> enum_names(OptimizerName) {
  using enum OptimizerName;
  return {{{"adamw", adamw}, {"sgd", sgd}, {"muon", muon}}};
}

/// `optimizer.muon:` section in the input file, for the hidden layers' matrices. Defaults are the
/// authors' (github.com/KellerJordan/Muon). The rest of the model has AdamW with OptimizerOptions.
struct MuonOptions {
  double lr = 0.02;  ///< the schedule's peak
  double momentum = 0.95;
  bool nesterov = true;
};

enum class OuterName : std::uint8_t { nesterov, sgd };
inline EnumNames<OuterName> enum_names(OuterName) {
  return {{{"nesterov", OuterName::nesterov}, {"sgd", OuterName::sgd}}};
}

/// `optimizer.outer:` section in the input file: replicas train apart and exchange what they
/// learned every so many steps (DiLoCo, Douillard et al. 2023). The defaults are the authors'.
struct OuterOptions {
  std::int64_t every_steps = 0;  ///< 0: replicas add up their gradients in every step
  OuterName name = OuterName::nesterov;
  double lr = 0.7;
  double momentum = 0.9;  ///< for nesterov
  sharding::ReduceDType reduce_dtype = sharding::ReduceDType::automatic;
  bool error_feedback = false;  ///< what int8 or int4 leave out is sent the next time
  // Streaming DiLoCo (Douillard et al. 2025).
  std::int64_t fragments = 1;    ///< parts that are exchanged in turn
  std::int64_t delay_steps = 0;  ///< in which an exchange takes place behind computation
  double local_share = 0.5;      ///< their alpha: weight for what the replica has itself

  bool enabled() const { return every_steps > 0; }
};

/// `optimizer:` section in the input file. `lr` is the schedule's peak.
struct OptimizerOptions {
  OptimizerName name = OptimizerName::adamw;
  double lr = 3e-4;
  double beta1 = 0.9;  ///< `betas: [0.9, 0.95]` in the input file; for sgd, beta1 is the momentum
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  ///< matrices only
  double clip_norm = 1.0;     ///< global gradient norm limit; 0: no clipping
  MuonOptions muon = {};
  OuterOptions outer = {};
  DType moments = DType::f32;  ///< storage of AdamW's; bf16 is rounded stochastically
};

enum class ScheduleName : std::uint8_t { constant, linear, cosine, wsd };
inline EnumNames<ScheduleName> enum_names(ScheduleName) {
  using enum ScheduleName;
  return {{{"constant", constant}, {"linear", linear}, {"cosine", cosine}, {"wsd", wsd}}};
}

/// `schedule:` section in the input file.
struct ScheduleOptions {
  ScheduleName name = ScheduleName::cosine;
  std::int64_t warmup_steps = 0;  ///< linear from 0
  std::int64_t decay_steps = 0;  ///< wsd: length of the final decay; others: 0 = until the run ends
  double min_lr_ratio = 0.1;     ///< final rate as a fraction of lr
};

}  // namespace llamesh::optim
