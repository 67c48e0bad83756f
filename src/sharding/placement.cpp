#include "sharding/placement.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <ranges>
#include <string>

#include "core/error.hpp"

namespace llamesh::sharding {
namespace {

/// Returns true if padding may follow the parameter's last row.
bool may_be_padded(const model::Parameter& parameter) {
  return parameter.role == model::Role::vocab;
}

/// Returns the rows per rank, with padding, if `ranks` divide a vocabulary: a multiple of 16 bytes
/// in bf16, which GEMMs need to be fast, unless that leaves the last rank without a row.
std::int64_t vocab_rows(std::int64_t vocab_size, std::int64_t ranks) {
  constexpr std::int64_t multiple = 8;
  const std::int64_t rows = (vocab_size + ranks - 1) / ranks;
  if (vocab_size % ranks == 0) return rows;
  const std::int64_t aligned = (rows + multiple - 1) / multiple * multiple;
  return aligned * (ranks - 1) < vocab_size ? aligned : rows;
}

/// Returns true if `ranks` divide the parameter's blocks, each with a whole number of them.
bool divides(const model::Parameter& parameter, std::int64_t ranks) {
  const auto count = parameter.blocks.count;
  if (may_be_padded(parameter)) return vocab_rows(count, ranks) * (ranks - 1) < count;
  return count % ranks == 0;
}

/// Returns true if all of the table's blocks can be divided among `ranks`.
bool divides_all(const model::ParameterTable& table, std::int64_t ranks) {
  return std::ranges::all_of(table.parameters, [&](const model::Parameter& parameter) {
    const auto& [key, count, may_be_shared] = parameter.blocks;
    return divides(parameter, ranks) || (may_be_shared && ranks % count == 0);
  });
}

/// No mesh has an axis this long; a vocabulary may be longer.
constexpr std::int64_t max_divisor = 1 << 16;

/// Returns the numbers next to `ranks` that divide all blocks: "4 or 8 would do".
std::string nearest_divisors(const model::ParameterTable& table, std::int64_t ranks) {
  std::int64_t max_ranks = max_divisor;
  for (const auto& [key, count, may_be_shared] :
       table.parameters | std::views::transform(&model::Parameter::blocks))
    if (count > 0 && !may_be_shared) max_ranks = std::min(max_ranks, count);
  auto below = std::min(ranks - 1, max_ranks), above = ranks + 1;
  while (below > 1 && !divides_all(table, below)) --below;
  while (above <= max_ranks && !divides_all(table, above)) ++above;
  if (below > 1 && above <= max_ranks) return fmt::format("{} or {} would do", below, above);
  if (below <= 1 && above > max_ranks) return "no number above 1 divides all of this model";
  return fmt::format("{} would do", below > 1 ? below : above);
}

void check_blocks(const model::ParameterTable& table, const model::Parameter& parameter,
                  std::int64_t parts) {
  if (divides(parameter, parts)) return;
  fail(ExitCode::bad_input,
       "model.{} {} cannot be divided among {} ranks (mesh.axes.tensor, "
       "--tensor-parallel-size); {}",
       parameter.blocks.key, parameter.blocks.count, parts, nearest_divisors(table, parts));
}

/// Returns the shape of a rank's part, with padding.
Shape padded_shape(const Placement& placement, const comm::ParallelDims& dims,
                   const model::Parameter& parameter) {
  Shape shape = parameter.shape;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const int count = dims.group_size(placement.split[d]);
    const bool padded = d == 0 && may_be_padded(parameter);
    validate(padded || shape[d] % count == 0,
             "{}: dim {} of {} elements cannot be cut into {} equal parts", parameter.name, d,
             shape[d], count);
    shape[d] = padded ? vocab_rows(shape[d], count) : shape[d] / count;
  }
  return shape;
}

}  // namespace

comm::AxisSet Placement::split_axes() const {
  comm::AxisSet all;
  for (const auto& axes : split) all |= axes;
  return all;
}

comm::AxisSet Placement::replicated(const comm::ParallelDims& dims) const {
  const auto divided = sharded | split_axes() | apart;
  return dims.all() & ~(stages.empty() ? divided : divided | dims.pipeline());
}

bool Placement::counts_on(const comm::ParallelDims& dims, int rank) const {
  return stages.empty() || dims.rank_in_group(dims.pipeline(), rank) == stages.front();
}

bool Placement::is_first_copy(const comm::ParallelDims& dims, int rank) const {
  return counts_on(dims, rank) && dims.rank_in_group(replicated(dims), rank) == 0;
}

std::string stages_text(const std::vector<int>& stages) {
  if (stages.empty()) return "";
  return fmt::format("stage{} {}", stages.size() == 1 ? "" : "s", fmt::join(stages, ", "));
}

bool is_in_stage(const std::vector<int>& stages, const comm::ParallelDims& dims, int rank) {
  return stages.empty() ||
         std::ranges::find(stages, dims.rank_in_group(dims.pipeline(), rank)) != stages.end();
}

Placements whole_and_sharded(const model::ParameterTable& table, const comm::ParallelDims& dims) {
  Placements placements;
  for (const auto& parameter : table.parameters)
    placements.push_back(
        {std::vector<comm::AxisSet>(parameter.shape.size()),
         model::is_fp32(parameter.role) ? comm::AxisSet() : dims.named({"shard"})});
  return placements;
}

int parts(const Placement& placement, const comm::ParallelDims& dims) {
  int count = 1;
  for (const auto& axes : placement.split) count *= dims.group_size(axes);
  return count;
}

int part_of(const Placement& placement, const comm::ParallelDims& dims, int rank) {
  int number = 0;
  for (const auto& axes : placement.split)
    number = number * dims.group_size(axes) + dims.rank_in_group(axes, rank);
  return number;
}

Box part(const Placement& placement, const comm::ParallelDims& dims,
         const model::Parameter& parameter, int number) {
  const auto& shape = parameter.shape;
  expects(placement.split.size() == shape.size(), "{}: a placement of {} dims for {}",
          parameter.name, placement.split.size(), shape.size());
  Box box{Shape(shape.size()), padded_shape(placement, dims, parameter)};
  for (std::size_t d = shape.size(); d-- > 0;) {
    const int count = dims.group_size(placement.split[d]);
    box.begin[d] = number % count * box.shape[d];
    box.shape[d] = std::min(box.shape[d], shape[d] - box.begin[d]);
    number /= count;
  }
  return box;
}

model::ParameterTable local_table(const model::ParameterTable& table,
                                  const comm::ParallelDims& dims, const Placements& placements) {
  expects(placements.size() == table.parameters.size(), "{} placements for {} parameters",
          placements.size(), table.parameters.size());
  model::ParameterTable local = table;
  for (std::size_t i = 0; i < placements.size(); ++i) {
    auto& parameter = local.parameters[i];
    if (const auto dim = model::divided_dim(parameter))
      check_blocks(table, parameter, dims.group_size(placements[i].split[*dim]));
    parameter.shape = padded_shape(placements[i], dims, parameter);
  }
  return local;
}

}  // namespace llamesh::sharding
