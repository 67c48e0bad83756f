#include "sharding/compile_spec.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "core/error.hpp"
#include "core/text.hpp"
#include "sharding/spec_compiler.hpp"
#include "sharding/tensor_placements.hpp"

namespace llamesh::sharding {
namespace {

using comm::AxisSet;
using model::index;
using model::ParameterId;

/// Returns the entry for each target, or null if the spec does not name it. If two entries name it,
/// the one with an explicit layer number wins.
std::vector<const SpecEntry*> choose_entries(const Spec& spec, const SpecNames& names) {
  std::vector<const SpecEntry*> chosen(names.targets().size(), nullptr);
  const auto is_exact = [&](const SpecEntry& e) { return !names.is_for_every_layer(e); };
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

/// Returns the last part of a weight's name that is not `weight`: "q_proj", "w1".
std::string short_name(const model::Parameter& parameter) {
  std::string_view name = parameter.name;
  if (constexpr std::string_view weight = ".weight"; name.ends_with(weight))
    name.remove_suffix(weight.size());
  return std::string(name.substr(name.rfind('.') + 1));
}

const char* name_of_shape(std::size_t dims) {
  return dims == 1 ? "a vector" : dims == 2 ? "a matrix" : "a stack of matrices";
}

bool is_row(model::Role role) {
  return role == model::Role::row || role == model::Role::expert_row;
}
bool is_linear(model::Role role) {
  return role == model::Role::column || is_row(role) || model::is_stacked(role);
}

}  // namespace

std::string listed(const std::vector<std::string>& names) {
  const auto but_last = std::span(names).first(names.size() - 1);
  return but_last.empty() ? names.back()
                          : fmt::format("{} and {}", fmt::join(but_last, ", "), names.back());
}

SpecCompiler::SpecCompiler(Spec spec, const model::ParameterTable& table,
                           const comm::ParallelDims& dims)
    : spec_(std::move(spec)),
      table_(table),
      dims_(dims),
      data_(dims.data_axes()),
      tensor_(dims.tensor()),
      expert_(dims.named({"expert"})),
      names_(table),
      chosen_(choose_entries(spec_, names_)),
      entry_of_(table.parameters.size(), nullptr) {
  for (std::size_t i = 0; i < table.parameters.size(); ++i)
    if (const auto& parameter = table.parameters[i];
        is_row(parameter.role) && model::divided_dim(parameter))
      rows_.push_back(static_cast<ParameterId>(i));
}

CompiledSpec SpecCompiler::compile(ResidualLayout residual) {
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
    if (is_shared || model::has_partial_gradient(parameter.role))
      divide(placements_[i], parameter, dims_);
  }
  return {placements_, layout};
}

/// Returns the axis for a word.
AxisSet SpecCompiler::axis(const SpecEntry& entry, const std::string& word) const {
  const std::string name = word == "fsdp" ? "shard" : word == "data" ? "replicate" : word;
  const auto set = dims_.named({name});
  const bool may_be_left_out = name == "tensor" || name == "expert" || name == "context";
  if (set.any() && !(may_be_left_out && dims_.group_size(set) == 1)) return set;
  const bool known = may_be_left_out || name == "shard" || name == "replicate";
  validate(
      known, "{}: unknown axis '{}'{}", line_of(entry), excerpt(word),
      did_you_mean(word, {"replicate", "shard", "expert", "context", "tensor", "data", "fsdp"}));
  fail(ExitCode::bad_input, "{}: the mesh {} has no axis '{}'; {}", line_of(entry),
       comm::to_string(dims_), excerpt(word),
       may_be_left_out ? fmt::format("give it 2 or more ranks in mesh.axes.{}, or write null", name)
                       : "write null");
}

void SpecCompiler::check_names_a_weight() const {
  for (std::size_t t = 0; t < chosen_.size(); ++t)
    if (chosen_[t] && names_.targets()[t].is_weight) return;
  fail(ExitCode::bad_input,
       "sharding.spec does not name any of the model's {} weights, so every rank would hold all of "
       "them; name weights as the files in inputs/specs do, or leave sharding.spec out",
       table_.parameters.size());
}

AxisSet SpecCompiler::axes(const SpecEntry& entry, std::size_t dim) const {
  AxisSet set;
  for (const auto& word : entry.dims[dim]) {
    const auto one = axis(entry, word);
    validate((set & one).none(), "{}: dim {} names '{}' twice", line_of(entry), dim, word);
    set |= one;
  }
  return set;
}

void SpecCompiler::place(const SpecTarget& target, const SpecEntry& entry) {
  const auto& parameter = table_[*target.parameter];
  const auto& shape = parameter.shape;
  validate(entry.dims.size() == shape.size(), "{}: {} has {} dims, but {} has {}; the weight is {}",
           line_of(entry), to_string(entry.dims), entry.dims.size(), name_of_shape(shape.size()),
           shape.size(), fmt::join(shape, " x "));
  const auto flat = model::is_stacked(parameter.role) ? data_ & ~expert_ : data_;
  Placement placement{std::vector<AxisSet>(shape.size()), {}};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const auto here = axes(entry, d);
    const auto before = placement.sharded | placement.split_axes();
    validate((here & before).none(), "{}: {} names an axis on two dims; it can divide only one",
             line_of(entry), to_string(entry.dims));
    if ((here & tensor_).any()) check_cut(target, entry, d);
    if ((here & expert_ & ~flat).any()) check_expert_cut(parameter, entry, d);
    placement.sharded |= here & flat;
    placement.split[d] = here & ~flat;
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
void SpecCompiler::check_cut(const SpecTarget& target, const SpecEntry& entry,
                             std::size_t dim) const {
  const auto& parameter = table_[*target.parameter];
  const auto by_role = model::divided_dim(parameter);
  const bool is_embedding = *target.parameter == table_.embed_tokens.weight;
  if (by_role == dim || (is_embedding && !table_.tied())) return;
  fail(ExitCode::bad_input, "{}: dim {} cannot be cut along 'tensor'; {}", line_of(entry), dim,
       fitting_dims(*target.parameter));
}

/// Returns advice on dims for a weight that `tensor` does not divide as written.
const char* SpecCompiler::fitting_dims(ParameterId id) const {
  const auto& parameter = table_[id];
  using enum model::Role;
  const bool has_experts = expert_.any();
  switch (parameter.role) {
    case gate:
    case router:
      return "a router's weight is whole along it: [shard, null]";
    case expert_column:
      if (!parameter.is_matrix())
        return has_experts ? "write [[expert, shard], tensor]" : "write [shard, tensor]";
      return has_experts ? "write [expert, tensor, shard]" : "write [null, tensor, shard]";
    case expert_row:
      return has_experts ? "write [expert, shard, tensor]" : "write [null, shard, tensor]";
    case expert_bias:
      return has_experts ? "write [expert, shard]" : "write [shard, null]";
    default:
      break;
  }
  const auto by_role = model::divided_dim(parameter);
  return !by_role                           ? "a norm's weight is whole along it: [shard]"
         : *by_role > 0                     ? "write [shard, tensor]"
         : id == table_.embed_tokens.weight ? "a tied embedding is cut as [tensor, shard]"
                                            : "write [tensor, shard]";
}

/// Checks that an expert axis divides the experts of a stack: other dims belong to one expert.
void SpecCompiler::check_expert_cut(const model::Parameter& parameter, const SpecEntry& entry,
                                    std::size_t dim) const {
  const bool by_rows = is_row(parameter.role), tensor = tensor_.any();
  validate(dim == 0,
           "{}: dim {} cannot be cut along 'expert', which divides the {} experts of dim 0; write "
           "[expert, {}, {}]",
           line_of(entry), dim, parameter.shape.front(), tensor && !by_rows ? "tensor" : "shard",
           tensor && by_rows ? "tensor"
           : tensor          ? "shard"
                             : "null");
}

/// Checks the weights of each attention, MLP and group of experts: their modules, or their own
/// module if they are stacked, are siblings.
void SpecCompiler::check_products() const {
  std::vector<ParameterId> siblings;
  auto parent = table_.root;
  const auto parent_of = [&](const model::Parameter& p) { return table_[p.module].parent; };
  const auto check = [&] {
    check_together(siblings, "tensor");
    std::erase_if(siblings, [&](auto id) { return !model::is_stacked(table_[id].role); });
    check_together(siblings, "expert");
    siblings.clear();
  };
  for (std::size_t i = 0; i < table_.parameters.size(); ++i) {
    const auto& parameter = table_.parameters[i];
    if (!is_linear(parameter.role)) continue;
    if (parent_of(parameter) != parent) {
      check();
      parent = parent_of(parameter);
    }
    if (model::divided_dim(parameter)) siblings.push_back(static_cast<ParameterId>(i));
  }
  check();
}

/// Checks that an axis divides all of these weights or none: a row weight follows wherever column
/// weights divide along `tensor`, and the other way round.
void SpecCompiler::check_together(std::span<const ParameterId> weights,
                                  std::string_view axis) const {
  const auto along = dims_.named({axis});
  const auto cut = std::ranges::find_if(weights, [&](auto id) { return is_cut(id, along); });
  const auto whole = std::ranges::find_if_not(weights, [&](auto id) { return is_cut(id, along); });
  if (cut == weights.end() || whole == weights.end()) return;
  std::vector<std::string> all, columns, rows;
  for (const auto id : weights) {
    all.push_back(short_name(table_[id]));
    (is_row(table_[id].role) ? rows : columns).push_back(all.back());
  }
  const bool stacked = model::is_stacked(table_[*cut].role);
  const auto before = !stacked ? "" : expert_.any() ? "expert, " : "null, ";
  const auto instead = axis == "expert"
                           ? fmt::format("write 'expert' on dim 0 of {}", listed(all))
                           : fmt::format("cut {} as [{}tensor, shard] and {} as [{}shard, tensor]",
                                         listed(columns), before, listed(rows), before);
  fail(ExitCode::bad_input, "{}: it is cut along '{}', but {} is not; {}{}",
       line_of(*entry_of_[index(*cut)]), axis, with_line(*whole), instead,
       axis == "expert" ? "" : ", or none of them");
}

CompiledSpec compile(const Spec& spec, const model::ParameterTable& table,
                     const comm::ParallelDims& dims, ResidualLayout residual) {
  return SpecCompiler(with_stack_dims(spec), table, dims).compile(residual);
}

}  // namespace llamesh::sharding
