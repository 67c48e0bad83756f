#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sharding/compile_spec.hpp"
#include "sharding/spec_names.hpp"

namespace llamesh::sharding {

/// Formats an entry: "x.yaml:4: model.norm.weight".
inline std::string line_of(const SpecEntry& entry) {
  return fmt::format("{}: {}", entry.where, entry.name);
}

/// Formats a list: "q_proj, k_proj and v_proj".
std::string listed(const std::vector<std::string>& names);

/// The steps of sharding::compile(): weights first (compile_spec.cpp), then the outputs that they
/// imply (compile_outputs.cpp).
class SpecCompiler {
 public:
  SpecCompiler(Spec spec, const model::ParameterTable& table, const comm::ParallelDims& dims);
  CompiledSpec compile(ResidualLayout residual);

 private:
  void check_names_a_weight() const;
  comm::AxisSet axis(const SpecEntry& entry, const std::string& word) const;
  comm::AxisSet axes(const SpecEntry& entry, std::size_t dim) const;
  void place(const SpecTarget& target, const SpecEntry& entry);
  void check_cut(const SpecTarget& target, const SpecEntry& entry, std::size_t dim) const;
  void check_expert_cut(const model::Parameter& parameter, const SpecEntry& entry,
                        std::size_t dim) const;
  const char* fitting_dims(model::ParameterId id) const;
  void check_products() const;
  void check_together(std::span<const model::ParameterId> weights, std::string_view axis) const;
  void check_output(const SpecTarget& target, const SpecEntry& entry);
  void check_batch(const SpecEntry& entry, comm::AxisSet batch, comm::AxisSet others) const;
  void check_residual(const SpecEntry& entry, bool by_rows, bool by_columns);
  void check_columns(const SpecTarget& target, const SpecEntry& entry, bool by_rows,
                     bool by_columns) const;
  ResidualLayout residual_of(ResidualLayout otherwise) const;
  bool is_cut(model::ParameterId id) const { return is_cut(id, tensor_); }
  bool is_cut(model::ParameterId id, comm::AxisSet along) const {
    return (placements_[model::index(id)].split_axes() & along).any();
  }
  bool every_layer_is_cut() const {
    return std::ranges::all_of(rows_, [&](auto id) { return is_cut(id); });
  }
  /// Returns "model.norm.weight (x.yaml:4)", or notes that the spec does not name it.
  std::string with_line(model::ParameterId id) const {
    const auto* entry = entry_of_[model::index(id)];
    return fmt::format("{} ({})", table_[id].name,
                       entry ? entry->where : "the spec does not name it");
  }

  Spec spec_;
  const model::ParameterTable& table_;
  const comm::ParallelDims& dims_;
  comm::AxisSet data_, tensor_, expert_;
  std::vector<model::ParameterId> rows_;  ///< weights whose products go into the residual stream
  SpecNames names_;
  std::vector<const SpecEntry*> chosen_;    ///< per target
  std::vector<const SpecEntry*> entry_of_;  ///< per parameter
  Placements placements_;
  std::optional<ResidualLayout> residual_;  ///< as stated by an output
  const SpecEntry* residual_entry_ = nullptr;
};

}  // namespace llamesh::sharding
