#include "sharding/compile_spec.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "core/did_you_mean.hpp"
#include "core/error.hpp"
#include "core/printable.hpp"
#include "sharding/mesh_tensor_parallel.hpp"
#include "sharding/spec_names.hpp"

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

class Compiler {
 public:
  Compiler(const Spec& spec, const model::ParameterTable& table, const comm::ParallelDims& dims)
      : table_(table),
        dims_(dims),
        data_(dims.data()),
        tensor_(dims.tensor()),
        names_(table),
        chosen_(choose_entries(spec, names_)),
        entry_of_(table.parameters.size(), nullptr) {}

  CompiledSpec compile(ResidualLayout residual) {
    for (const auto& parameter : table_.parameters)
      placements_.push_back({std::vector<AxisSet>(parameter.shape.size()), {}});
    for (std::size_t t = 0; t < chosen_.size(); ++t)
      if (chosen_[t] && names_.targets()[t].is_weight) place(names_.targets()[t], *chosen_[t]);
    for (const auto& layer : table_.layers) check_layer(layer);
    for (std::size_t t = 0; t < chosen_.size(); ++t)
      if (chosen_[t] && !names_.targets()[t].is_weight)
        check_output(names_.targets()[t], *chosen_[t]);
    check_names_a_weight();
    const auto layout = residual_of(residual);
    if (layout != ResidualLayout::whole)
      for (const auto& target : names_.targets())
        if (target.role == SpecRole::norm)
          divide_norm(placements_[index(target.parameter)], layout);
    for (const auto& layer : table_.layers)
      for (const auto id : {layer.k_proj.weight, layer.v_proj.weight})
        if (is_cut(id)) share_kv_heads(placements_[index(id)], dims_);
    return {placements_, layout};
  }

 private:
  void check_names_a_weight() const;
  AxisSet axis(const SpecEntry& entry, const std::string& word) const;
  AxisSet axes(const SpecEntry& entry, std::size_t dim) const;
  void place(const SpecTarget& target, const SpecEntry& entry);
  void check_cut(const SpecTarget& target, const SpecEntry& entry, std::size_t dim) const;
  void check_layer(const model::LayerIds& layer) const;
  void check_together(std::span<const ParameterId> weights, const char* what) const;
  void check_output(const SpecTarget& target, const SpecEntry& entry);
  void check_batch(const SpecEntry& entry, AxisSet batch, AxisSet others) const;
  void check_residual(const SpecEntry& entry, bool by_rows, bool by_columns);
  void check_columns(const SpecTarget& target, const SpecEntry& entry, bool by_rows,
                     bool by_columns) const;
  ResidualLayout residual_of(ResidualLayout otherwise) const;
  /// Sets a norm's placement: partial gradients if ranks have rows, split if they have columns.
  void divide_norm(Placement& norm, ResidualLayout layout) const {
    (layout == ResidualLayout::hidden ? norm.cut[0] : norm.partial) = tensor_;
  }

  bool is_cut(ParameterId id) const { return placements_[index(id)].cut_axes().any(); }
  bool every_layer_is_cut() const {
    return std::ranges::all_of(table_.layers, [&](const auto& l) {
      return is_cut(l.o_proj.weight) && is_cut(l.down_proj.weight);
    });
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
  const auto& parameter = table_[target.parameter];
  const auto& shape = parameter.shape;
  validate(entry.dims.size() == shape.size(), "{}: {} has {} dims, but {} has {}; the weight is {}",
           line_of(entry), to_string(entry.dims), entry.dims.size(),
           shape.size() == 1 ? "a vector" : "a matrix", shape.size() == 1 ? "1" : "2",
           fmt::join(shape, " x "));
  Placement placement{std::vector<AxisSet>(shape.size()), {}};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const auto here = axes(entry, d);
    const auto before = placement.sharded | placement.cut_axes();
    validate((here & before).none(), "{}: {} names an axis on two dims; it can divide only one",
             line_of(entry), to_string(entry.dims));
    if ((here & tensor_).any()) check_cut(target, entry, d);
    placement.sharded |= here & data_;
    placement.cut[d] = here & ~data_;
  }
  auto*& earlier = entry_of_[index(target.parameter)];
  validate(earlier == nullptr || placements_[index(target.parameter)] == placement,
           "{}: {} is {}, but {} at {}, which is the same tied weight, is {}", entry.where,
           entry.name, to_string(entry.dims), earlier ? earlier->name : "",
           earlier ? earlier->where : "", to_string(earlier ? earlier->dims : entry.dims));
  earlier = &entry;
  placements_[index(target.parameter)] = std::move(placement);
}

/// Checks that Megatron splits this dim along `tensor`.
void Compiler::check_cut(const SpecTarget& target, const SpecEntry& entry, std::size_t dim) const {
  using enum SpecRole;
  const bool by_rows = dim == 0;
  const bool fits = target.role == embedding ? by_rows || !table_.tied()
                    : target.role == columns || target.role == head
                        ? by_rows
                        : target.role == rows && !by_rows;
  if (fits) return;
  const char* instead = target.role == norm        ? "a norm's weight is whole along it: [shard]"
                        : target.role == rows      ? "write [shard, tensor]"
                        : target.role == embedding ? "a tied embedding is cut as [tensor, shard]"
                                                   : "write [tensor, shard]";
  fail(ExitCode::bad_input, "{}: dim {} cannot be cut along 'tensor'; {}", line_of(entry), dim,
       instead);
}

void Compiler::check_layer(const model::LayerIds& l) const {
  const std::array attention{l.q_proj.weight, l.k_proj.weight, l.v_proj.weight, l.o_proj.weight};
  check_together(attention, "q_proj, k_proj and v_proj as [tensor, shard] and o_proj");
  const std::array mlp{l.gate_proj.weight, l.up_proj.weight, l.down_proj.weight};
  check_together(mlp, "gate_proj and up_proj as [tensor, shard] and down_proj");
}

/// Checks that weights used together are split together: the last one undoes the split along
/// `tensor`.
void Compiler::check_together(std::span<const ParameterId> weights, const char* what) const {
  const auto cut = std::ranges::find_if(weights, [&](auto id) { return is_cut(id); });
  const auto whole = std::ranges::find_if_not(weights, [&](auto id) { return is_cut(id); });
  if (cut == weights.end() || whole == weights.end()) return;
  const auto& entry = *entry_of_[index(*cut)];
  fail(ExitCode::bad_input,
       "{}: it is cut along 'tensor', but {} is not; cut {} as [shard, tensor], or none of them",
       line_of(entry), with_line(*whole), what);
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
  if (target.role == SpecRole::residual)
    check_residual(entry, by_rows, by_columns);
  else
    check_columns(target, entry, by_rows, by_columns);
}

void Compiler::check_batch(const SpecEntry& entry, AxisSet batch, AxisSet others) const {
  std::vector<std::string> needed;
  AxisSet all;
  for (const auto& [name, size] : dims_.axes())
    if (const auto axis = dims_.named({name}) & data_; axis.any() && size > 1) {
      needed.push_back(name);
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
    for (const auto& l : table_.layers)
      for (const auto id : {l.o_proj.weight, l.down_proj.weight})
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
  const bool cut = placements_[index(target.parameter)].cut[0].any();
  validate(cut == by_columns, "{}: {} {} along 'tensor', but {} {}; write {} here, or {} there",
           line_of(entry), to_string(entry.dims), by_columns ? "is cut" : "is not cut",
           with_line(target.parameter), cut ? "is" : "is not",
           to_string({entry.dims[0],
                      {},
                      cut ? std::vector<std::string>{"tensor"} : std::vector<std::string>{}}),
           cut ? "null" : "'tensor' on the first dim");
}

ResidualLayout Compiler::residual_of(ResidualLayout otherwise) const {
  const auto embedding = index(table_.embed_tokens.weight);
  if (placements_[embedding].cut[1].none())
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

void check_implemented(const ShardLayout& layout, ResidualLayout residual) {
  const auto& dims = layout.dims();
  if (dims.group_size(dims.tensor()) == 1) return;
  const auto& table = layout.table();
  const auto megatron = tensor_parallel_placements(table, dims, {residual});
  for (std::size_t i = 0; i < megatron.size(); ++i) {
    const auto& cut = layout.placement(static_cast<ParameterId>(i)).cut;
    // If the residual stream is split by columns, the embedding may be looked up by columns.
    const bool is_embedding = i == index(table.embed_tokens.weight);
    if (is_embedding && residual == ResidualLayout::hidden && cut[0].none()) continue;
    validate(cut == megatron[i].cut,
             "sharding.spec: {} is not cut as Megatron does; on a mesh with an axis tensor that is "
             "not implemented: write {} for it",
             table.parameters[i].name,
             megatron[i].cut[0].any() ? "[tensor, shard]" : "[shard, tensor]");
  }
}

Spec builtin_spec(const comm::ParallelDims& dims, ResidualLayout residual) {
  using Axes = std::vector<std::string>;
  const bool cut = dims.group_size(dims.tensor()) > 1;
  const Axes whole, shard{"shard"}, tensor = cut ? Axes{"tensor"} : whole;
  Spec spec;
  const auto add = [&](std::string name, std::vector<Axes> axes) {
    spec.entries.push_back({std::move(name), std::move(axes), "built in"});
  };
  const auto layer = [&](const std::string& name, const std::vector<Axes>& axes) {
    add("model.layers.*." + name + ".weight", axes);
  };
  const std::vector<Axes> columns = cut ? std::vector{tensor, shard} : std::vector{shard, whole};
  add("model.embed_tokens.weight", columns);
  for (const char* name :
       {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"})
    layer(name, columns);
  for (const char* name : {"self_attn.o_proj", "mlp.down_proj"}) layer(name, {shard, tensor});
  for (const char* name : {"input_layernorm", "post_attention_layernorm"}) layer(name, {shard});
  add("model.norm.weight", {shard});
  add("lm_head.weight", columns);
  const auto along = [&](ResidualLayout where) { return residual == where ? tensor : whole; };
  add("model.layers.*",
      {{"replicate", "shard"}, along(ResidualLayout::sequence), along(ResidualLayout::hidden)});
  return spec;
}

}  // namespace llamesh::sharding
