#pragma once

#include <cstdint>

#include "core/dtype.hpp"
#include "core/enum_names.hpp"

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
