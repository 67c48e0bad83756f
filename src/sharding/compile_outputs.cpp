#include <string>
#include <vector>

#include "core/error.hpp"
#include "sharding/spec_compiler.hpp"

// The outputs that a spec names: each must match what the weights imply.

namespace llamesh::sharding {

using comm::AxisSet;
using model::index;

void SpecCompiler::check_output(const SpecTarget& target, const SpecEntry& entry) {
  validate(entry.dims.size() == 3,
           "{}: {} has {} dims, but a module's output has 3: batch, sequence, hidden",
           line_of(entry), to_string(entry.dims), entry.dims.size());
  const auto batch = axes(entry, 0), sequence = axes(entry, 1), hidden = axes(entry, 2);
  check_batch(entry, batch, sequence | hidden);
  validate(
      (hidden & dims_.context()).none(),
      "{}: {} names 'context' on the last dim, but it divides sequences; write [context, null] "
      "for the last two dims",
      line_of(entry), to_string(entry.dims));
  const bool by_rows = (sequence & tensor_).any(), by_columns = hidden.any();
  validate(!by_rows || !by_columns, "{}: {} names 'tensor' on two dims; it can divide only one",
           line_of(entry), to_string(entry.dims));
  if (target.parameter)
    check_columns(target, entry, by_rows, by_columns);
  else
    check_residual(entry, by_rows, by_columns);
}

/// Checks the dim that all data axes divide. `context` is not one of them: it divides sequences, on
/// every mesh that has it, so an entry may name it on the second dim or leave it out.
void SpecCompiler::check_batch(const SpecEntry& entry, AxisSet batch, AxisSet others) const {
  std::vector<std::string> needed;
  AxisSet all;
  for (const auto& axis_of_mesh : dims_.axes())
    if (const auto axis = dims_.named({axis_of_mesh.name}) & dims_.batch_axes();
        axis.any() && axis_of_mesh.size > 1) {
      needed.push_back(axis_of_mesh.name);
      all |= axis;
    }
  if ((batch & ~dims_.batch_axes()).none() && (all & ~batch).none() &&
      (others & dims_.batch_axes()).none())
    return;
  fail(ExitCode::bad_input,
       "{}: {}: on the mesh {} the first dim, the batch, is divided along {}, and no other dim is; "
       "write {}",
       line_of(entry), to_string(entry.dims), comm::to_string(dims_),
       needed.empty() ? "no axis but data" : listed(needed), to_string({needed, {}, {}}));
}

/// Checks an output in the residual stream: all such outputs have the same layout.
void SpecCompiler::check_residual(const SpecEntry& entry, bool by_rows, bool by_columns) {
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

/// Checks the output of a column-parallel product: split like its weight, with all ranks' rows.
void SpecCompiler::check_columns(const SpecTarget& target, const SpecEntry& entry, bool by_rows,
                                 bool by_columns) const {
  validate(
      !by_rows,
      "{}: {}: this module computes on the rows of all ranks along 'tensor'; only its last dim "
      "can be cut along it",
      line_of(entry), to_string(entry.dims));
  using enum model::Role;
  const auto role = table_[*target.parameter].role;
  const bool is_whole = role == router || role == gate;
  validate(!is_whole || !by_columns,
           "{}: {} is cut along 'tensor', but a router's output is whole along it; write {}",
           line_of(entry), to_string(entry.dims), to_string({entry.dims[0], {}, {}}));
  const bool cut = placements_[index(*target.parameter)].split[0].any();
  validate(cut == by_columns, "{}: {} {} along 'tensor', but {} {}; write {} here, or {} there",
           line_of(entry), to_string(entry.dims), by_columns ? "is cut" : "is not cut",
           with_line(*target.parameter), cut ? "is" : "is not",
           to_string({entry.dims[0],
                      {},
                      cut ? std::vector<std::string>{"tensor"} : std::vector<std::string>{}}),
           cut ? "null" : "'tensor' on the first dim");
}

ResidualLayout SpecCompiler::residual_of(ResidualLayout otherwise) const {
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

}  // namespace llamesh::sharding
