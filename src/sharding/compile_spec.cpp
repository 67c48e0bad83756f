#include "sharding/compile_spec.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "sharding/spec_names.hpp"
#include "sharding/tensor_placements.hpp"

namespace llamesh::sharding {
namespace {

using comm::AxisSet;
using model::index;
using model::ParameterId;

/// Formats an entry: "x.yaml:4: model.norm.weight".
std::string line_of(const SpecEntry& entry) {
  return fmt::format("{}: {}", entry.where, entry.name);
}

/// Returns the entry for each target, or null if the spec does not name it. If two entries name it,
/// the one with an explicit layer number wins.
std::vector<const SpecEntry*> choose_entries(const Spec& spec, const SpecNames& names) {
  std::vector<const SpecEntry*> chosen(names.targets().size(), nullptr);
  const auto is_exact = [](const SpecEntry& e) { return e.name.find('*') == std::string::npos; };
  for (const auto& entry : spec.entries)
    for (const auto t : names.find(entry)) {
      const SpecEntry* other = std::exchange(chosen[t], &entry);
      if (other == nullptr) continue;
      validate((without_element(entry).element < 0) == (without_element(*other).element < 0),
               "{}: {} is also given as {} at {}; keep one of them", entry.where, entry.name,
               other->name, other->where);
      if (is_exact(*other) && !is_exact(entry)) chosen[t] = other;
      if (is_exact(*other) != is_exact(entry)) continue;
      validate(entry.dims == other->dims, "{}: {} is {}, but {} at {}, which is the same, is {}",
               entry.where, entry.name, to_string(entry.dims), other->name, other->where,
               to_string(other->dims));
    }
  return chosen;
}

/// "q_proj, k_proj and v_proj".
std::string listed(const std::vector<std::string>& names) {
  const auto but_last = std::span(names).first(names.size() - 1);
  return but_last.empty() ? names.back()
                          : fmt::format("{} and {}", fmt::join(but_last, ", "), names.back());
}

class Compiler {
 public:
  Compiler(const Spec& spec, const model::ParameterTable& table, const comm::ParallelDims& dims)
      : table_(table),
        dims_(dims),
        data_(dims.gradient_axes()),
        tensor_(dims.tensor()),
        names_(table),
        chosen_(choose_entries(spec, names_)),
        entry_of_(table.parameters.size(), nullptr) {
    for (std::size_t i = 0; i < table.parameters.size(); ++i)
      if (const auto& parameter = table.parameters[i];
          parameter.role == model::Role::row && model::divided_dim(parameter))
        rows_.push_back(static_cast<ParameterId>(i));
  }

  CompiledSpec compile(ResidualLayout residual) {
    for (const auto& parameter : table_.parameters)
      placements_.push_back({std::vector<AxisSet>(parameter.shape.size()), {}});
    for (std::size_t t = 0; t < chosen_.size(); ++t)
      if (chosen_[t] && names_.targets()[t].is_weight) place(names_.targets()[t], *chosen_[t]);
    check_products();
    for (std::size_t t = 0; t < chosen_.size(); ++t)
      if (chosen_[t] && !names_.targets()[t].is_weight)
        check_output(names_.targets()[t], *chosen_[t]);
    check_names_a_weight();
    const auto layout = residual_of(residual);
    for (std::size_t i = 0; i < placements_.size(); ++i) {
      const auto& parameter = table_.parameters[i];
      place_along_residual(placements_[i], parameter, dims_, layout);
      const bool is_shared = parameter.blocks.may_be_shared && is_cut(static_cast<ParameterId>(i));
      if (is_shared || parameter.role == model::Role::per_head)
        divide(placements_[i], parameter, dims_);
    }
    return {placements_, layout};
  }

 private:
  void check_names_a_weight() const;
  AxisSet axis(const SpecEntry& entry, const std::string& word) const;
  AxisSet axes(const SpecEntry& entry, std::size_t dim) const;
  void place(const SpecTarget& target, const SpecEntry& entry);
  void check_cut(const SpecTarget& target, const SpecEntry& entry, std::size_t dim) const;
  void check_products() const;
  void check_together(std::span<const ParameterId> weights) const;
  void check_output(const SpecTarget& target, const SpecEntry& entry);
  void check_batch(const SpecEntry& entry, AxisSet batch, AxisSet others) const;
  void check_residual(const SpecEntry& entry, bool by_rows, bool by_columns);
  void check_columns(const SpecTarget& target, const SpecEntry& entry, bool by_rows,
                     bool by_columns) const;
  ResidualLayout residual_of(ResidualLayout otherwise) const;
  bool is_cut(ParameterId id) const { return placements_[index(id)].split_axes().any(); }
  bool every_layer_is_cut() const {
    return std::ranges::all_of(rows_, [&](auto id) { return is_cut(id); });
  }
  /// Returns "model.norm.weight (x.yaml:4)", or notes that the spec does not name it.
  std::string with_line(ParameterId id) const {
    const auto* entry = entry_of_[index(id)];
    return fmt::format("{} ({})", table_[id].name,
                       entry ? entry->where : "the spec does not name it");
  }

  const model::ParameterTable& table_;
  const comm::ParallelDims& dims_;
  AxisSet data_, tensor_;
  std::vector<ParameterId> rows_;  ///< weights whose products go into the residual stream
  SpecNames names_;
  std::vector<const SpecEntry*> chosen_;    ///< per target
  std::vector<const SpecEntry*> entry_of_;  ///< per parameter
  Placements placements_;
  std::optional<ResidualLayout> residual_;  ///< as stated by an output
  const SpecEntry* residual_entry_ = nullptr;
};

/// Returns the axis for a word.
AxisSet Compiler::axis(const SpecEntry& entry, const std::string& word) const {
  const std::string name = word == "fsdp" ? "shard" : word == "data" ? "replicate" : word;
  const auto set = dims_.named({name});
  const bool is_tensor = name == "tensor";
  if (set.any() && !(is_tensor && dims_.group_size(set) == 1)) return set;
  const bool known =
      is_tensor || name == "context" || name == "expert" || name == "shard" || name == "replicate";
  validate(known, "{}: unknown axis '{}'{}", line_of(entry), excerpt(word),
           did_you_mean(word, {"replicate", "shard", "tensor", "data", "fsdp"}));
  fail(ExitCode::bad_input, "{}: the mesh {} has no axis '{}'; {}", line_of(entry),
       comm::to_string(dims_), excerpt(word),
       is_tensor ? "give it 2 or more ranks in mesh.axes.tensor, or write null" : "write null");
}

void Compiler::check_names_a_weight() const {
  for (std::size_t t = 0; t < chosen_.size(); ++t)
    if (chosen_[t] && names_.targets()[t].is_weight) return;
  fail(ExitCode::bad_input,
       "sharding.spec does not name any of the model's {} weights, so every rank would hold all of "
       "them; name weights as the files in inputs/specs do, or leave sharding.spec out",
       table_.parameters.size());
}

AxisSet Compiler::axes(const SpecEntry& entry, std::size_t dim) const {
  AxisSet set;
  for (const auto& word : entry.dims[dim]) {
    const auto one = axis(entry, word);
    validate((set & one).none(), "{}: dim {} names '{}' twice", line_of(entry), dim, word);
    set |= one;
  }
  return set;
}

void Compiler::place(const SpecTarget& target, const SpecEntry& entry) {
  const auto& parameter = table_[*target.parameter];
  const auto& shape = parameter.shape;
  validate(entry.dims.size() == shape.size(), "{}: {} has {} dims, but {} has {}; the weight is {}",
           line_of(entry), to_string(entry.dims), entry.dims.size(),
           shape.size() == 1 ? "a vector" : "a matrix", shape.size() == 1 ? "1" : "2",
           fmt::join(shape, " x "));
  Placement placement{std::vector<AxisSet>(shape.size()), {}};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const auto here = axes(entry, d);
    const auto before = placement.sharded | placement.split_axes();
    validate((here & before).none(), "{}: {} names an axis on two dims; it can divide only one",
             line_of(entry), to_string(entry.dims));
    if ((here & tensor_).any()) check_cut(target, entry, d);
    placement.sharded |= here & data_;
    placement.split[d] = here & ~data_;
  }
  auto*& earlier = entry_of_[index(*target.parameter)];
  validate(earlier == nullptr || placements_[index(*target.parameter)] == placement,
           "{}: {} is {}, but {} at {}, which is the same tied weight, is {}", entry.where,
           entry.name, to_string(entry.dims), earlier ? earlier->name : "",
           earlier ? earlier->where : "", to_string(earlier ? earlier->dims : entry.dims));
  earlier = &entry;
  placements_[index(*target.parameter)] = std::move(placement);
}

/// Checks that the weight's role divides this dim along `tensor`.
void Compiler::check_cut(const SpecTarget& target, const SpecEntry& entry, std::size_t dim) const {
  const auto& parameter = table_[*target.parameter];
  const auto by_role = model::divided_dim(parameter);
  const bool is_embedding = *target.parameter == table_.embed_tokens.weight;
  if (by_role == dim || (is_embedding && !table_.tied())) return;
  const char* instead = !by_role       ? "a norm's weight is whole along it: [shard]"
                        : *by_role > 0 ? "write [shard, tensor]"
                        : is_embedding ? "a tied embedding is cut as [tensor, shard]"
                                       : "write [tensor, shard]";
  fail(ExitCode::bad_input, "{}: dim {} cannot be cut along 'tensor'; {}", line_of(entry), dim,
       instead);
}

/// Checks the weights of each attention and each MLP: its linear layers are siblings.
void Compiler::check_products() const {
  std::vector<ParameterId> siblings;
  auto parent = table_.root;
  const auto parent_of = [&](const model::Parameter& p) { return table_[p.module].parent; };
  for (std::size_t i = 0; i < table_.parameters.size(); ++i) {
    const auto& parameter = table_.parameters[i];
    if (parameter.role != model::Role::column && parameter.role != model::Role::row) continue;
    if (parent_of(parameter) != parent) {
      check_together(siblings);
      siblings.clear();
      parent = parent_of(parameter);
    }
    if (model::divided_dim(parameter)) siblings.push_back(static_cast<ParameterId>(i));
  }
  check_together(siblings);
}

/// Checks that a row weight follows wherever column weights divide along `tensor`, and the other
/// way round.
void Compiler::check_together(std::span<const ParameterId> weights) const {
  const auto cut = std::ranges::find_if(weights, [&](auto id) { return is_cut(id); });
  const auto whole = std::ranges::find_if_not(weights, [&](auto id) { return is_cut(id); });
  if (cut == weights.end() || whole == weights.end()) return;
  std::vector<std::string> columns, rows;
  for (const auto id : weights) {
    const auto& module = table_[table_[id].module].name;
    auto& names = table_[id].role == model::Role::column ? columns : rows;
    names.push_back(module.substr(module.rfind('.') + 1));
  }
  fail(ExitCode::bad_input,
       "{}: it is cut along 'tensor', but {} is not; cut {} as [tensor, shard] and {} as "
       "[shard, tensor], or none of them",
       line_of(*entry_of_[index(*cut)]), with_line(*whole), listed(columns), listed(rows));
}

void Compiler::check_output(const SpecTarget& target, const SpecEntry& entry) {
  validate(entry.dims.size() == 3,
           "{}: {} has {} dims, but a module's output has 3: batch, sequence, hidden",
           line_of(entry), to_string(entry.dims), entry.dims.size());
  const auto batch = axes(entry, 0), sequence = axes(entry, 1), hidden = axes(entry, 2);
  check_batch(entry, batch, sequence | hidden);
  const bool by_rows = sequence.any(), by_columns = hidden.any();
  validate(!by_rows || !by_columns, "{}: {} names 'tensor' on two dims; it can divide only one",
           line_of(entry), to_string(entry.dims));
  if (target.parameter)
    check_columns(target, entry, by_rows, by_columns);
  else
    check_residual(entry, by_rows, by_columns);
}

void Compiler::check_batch(const SpecEntry& entry, AxisSet batch, AxisSet others) const {
  std::vector<std::string> needed;
  AxisSet all;
  for (const auto& axis_of_mesh : dims_.axes())
    if (const auto axis = dims_.named({axis_of_mesh.name}) & data_;
        axis.any() && axis_of_mesh.size > 1) {
      needed.push_back(axis_of_mesh.name);
      all |= axis;
    }
  if ((batch & ~data_).none() && (all & ~batch).none() && (others & data_).none()) return;
  fail(ExitCode::bad_input,
       "{}: {}: on the mesh {} the first dim, the batch, is divided along {}, and no other dim is; "
       "write {}",
       line_of(entry), to_string(entry.dims), comm::to_string(dims_),
       needed.empty() ? "no axis but data" : fmt::format("{}", fmt::join(needed, " and ")),
       to_string({needed, {}, {}}));
}

/// Checks an output in the residual stream: all such outputs have the same layout.
void Compiler::check_residual(const SpecEntry& entry, bool by_rows, bool by_columns) {
  const auto here = by_rows      ? ResidualLayout::sequence
                    : by_columns ? ResidualLayout::hidden
                                 : ResidualLayout::whole;
  if (!residual_) {
    residual_entry_ = &entry;
    residual_ = here;
    for (const auto id : rows_)
      validate(here == ResidualLayout::whole || is_cut(id),
               "{}: {} divides the residual stream along 'tensor', but {} is not cut along it; "
               "cut the layers' weights, or write null",
               line_of(entry), to_string(entry.dims), with_line(id));
  }
  validate(
      *residual_ == here,
      "{}: {} contradicts {} of {} ({}): the residual stream is laid out in one way; write the "
      "same for both",
      line_of(entry), to_string(entry.dims), to_string(residual_entry_->dims),
      residual_entry_->name, residual_entry_->where);
}

/// Checks the output of a column-parallel product: split like its weight, over whole sequences.
void Compiler::check_columns(const SpecTarget& target, const SpecEntry& entry, bool by_rows,
                             bool by_columns) const {
  validate(!by_rows,
           "{}: {}: this module computes on whole sequences; only its last dim can be cut along "
           "'tensor'",
           line_of(entry), to_string(entry.dims));
  const bool cut = placements_[index(*target.parameter)].split[0].any();
  validate(cut == by_columns, "{}: {} {} along 'tensor', but {} {}; write {} here, or {} there",
           line_of(entry), to_string(entry.dims), by_columns ? "is cut" : "is not cut",
           with_line(*target.parameter), cut ? "is" : "is not",
           to_string({entry.dims[0],
                      {},
                      cut ? std::vector<std::string>{"tensor"} : std::vector<std::string>{}}),
           cut ? "null" : "'tensor' on the first dim");
}

ResidualLayout Compiler::residual_of(ResidualLayout otherwise) const {
  const auto embedding = index(table_.embed_tokens.weight);
  if (placements_[embedding].split[1].none())
    return residual_ ? *residual_ : every_layer_is_cut() ? otherwise : ResidualLayout::whole;
  const auto at = line_of(*entry_of_[embedding]);
  validate(every_layer_is_cut(),
           "{}: the embedding is cut by its hidden dim, but not every layer is cut along 'tensor'; "
           "write [tensor, shard], or cut the layers",
           at);
  if (residual_ && *residual_ != ResidualLayout::hidden)
    fail(ExitCode::bad_input,
         "{}: this contradicts {} of {} ({}): the rows of an embedding that is cut by its hidden "
         "dim are cut, too; write [tensor, shard] here, or 'tensor' on the last dim there",
         at, to_string(residual_entry_->dims), residual_entry_->name, residual_entry_->where);
  return ResidualLayout::hidden;
}

}  // namespace

CompiledSpec compile(const Spec& spec, const model::ParameterTable& table,
                     const comm::ParallelDims& dims, ResidualLayout residual) {
  return Compiler(spec, table, dims).compile(residual);
}

}  // namespace llamesh::sharding
