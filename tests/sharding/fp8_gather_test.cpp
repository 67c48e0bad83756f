#include "sharding/fp8_gather.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "comm/mesh/topology.hpp"
#include "device/device.hpp"
#include "sharding/placements.hpp"
#include "sharding/wrap_policy.hpp"
#include "support.hpp"

namespace llamesh::test {
namespace {

using sharding::Fp8Gather;
using sharding::ShardLayout;

device::Stream& compute() {
  return device::compute_stream();
}

/// A small model with experts, whose layers' units have biases, norms and a router beside their
/// linear weights. Ranks cut rows.
struct ModelOnAllRanks {
  explicit ModelOnAllRanks(int ranks_per_node)
      : table(model::parameter_table(config())),
        dims(comm::ParallelDims({{"shard", world().size()}})),
        layout(table, sharding::make_units(table, {}), dims),
        mesh(world(), comm::discover_topology(world(), ranks_per_node), dims),
        units(layout.units().size()) {
    std::iota(units.begin(), units.end(), 0);
  }
  static model::ModelConfig config() {
    auto c = even_config();
    c.family = "gpt_oss";
    c.hidden_size = 68;
    c.intermediate_size = 20;
    c.num_experts = 2;
    c.num_experts_per_tok = 1;
    c.head_dim = 34;
    return c.resolved();
  }
  comm::DeviceMesh::Axis& axis() { return mesh.axis("shard"); }

  model::ParameterTable table;
  comm::ParallelDims dims;
  ShardLayout layout;
  comm::DeviceMesh mesh;
  std::vector<std::size_t> units;
};

/// Returns a unit's numbers on all ranks, in the gathered dtype, with many magnitudes.
std::vector<float> numbers_of_unit(const ShardLayout& layout, std::size_t unit, DType dtype) {
  std::vector<float> values(static_cast<std::size_t>(layout.units()[unit].padded_numel));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto x = std::sin(0.7F * static_cast<float>(i)) * std::exp2(static_cast<float>(i % 11));
    values[i] = dtype == DType::bf16 ? static_cast<float>(bf16(x)) : x;
  }
  return values;
}

/// Returns what a gather makes of a unit's numbers: every matrix by its rows, on one rank.
std::vector<float> rounded_by_rows(const ShardLayout& layout, std::size_t unit,
                                   std::vector<float> values) {
  for (const auto id : layout.units()[unit].parameters) {
    if (!layout.table().is_linear(id)) continue;
    const auto& shape = layout.local_shape(id);
    const auto count = numel(shape), cols = shape.back();
    const Tensor matrix(values.data() + layout.place(id).offset, DType::f32, {count / cols, cols});
    std::vector<e4m3> codes(static_cast<std::size_t>(count));
    std::vector<float> scales(static_cast<std::size_t>(count / cols));
    const ops::Fp8Matrix q{.values = Tensor(codes.data(), DType::e4m3, {count / cols, cols}),
                           .scales = Tensor(scales.data(), DType::f32, {count / cols})};
    ops::quantize_rows(compute(), q, matrix);
    ops::dequantize_rows(compute(), matrix, q);
  }
  return values;
}

/// Gathers a unit with these numbers from fp32 shards, as `dtype`.
std::vector<float> gathered_unit(ModelOnAllRanks& on, Fp8Gather& gather, std::size_t unit,
                                 std::vector<float> values, DType dtype) {
  const auto& placed = on.layout.units()[unit];
  auto& collectives = *on.axis().collectives;
  const Tensor shard(values.data() + on.axis().rank * placed.shard_numel, DType::f32,
                     {placed.shard_numel});
  auto codes = collectives.allocate_gathered((placed.shard_numel + 63) / 64 * 64);
  const auto others_numel = gather.others_numel(unit);
  device::Buffer others(others_numel * size_of(dtype));
  const Fp8Gather::Whole whole{.values = codes.tensor(DType::e4m3, {placed.padded_numel}),
                               .others = others.tensor(dtype, {others_numel})};
  compute().wait(gather.all_gather(unit, whole, shard, compute().record()));
  std::vector<float> result(static_cast<std::size_t>(placed.numel));
  for (const auto id : placed.parameters) {
    const Tensor from = gather.parameter(id, whole), scales = gather.scales(id);
    const Tensor to(result.data() + on.layout.place(id).offset, DType::f32,
                    {from.rows(), from.cols()});
    EXPECT_EQ(static_cast<bool>(scales), on.table.is_linear(id));
    if (scales)
      ops::dequantize_rows(compute(), to, {.values = from, .scales = scales});
    else
      ops::copy(compute(), to, from);
  }
  world().barrier();  // nobody may still read the shared buffer
  return result;
}

std::vector<int> node_sizes_of_world() {
  const int ranks = world().size();
  return ranks % 2 == 0 && ranks > 2 ? std::vector{1, 2, ranks} : std::vector{1, ranks};
}

TEST(Fp8Gather, GivesAllRanksTheNumbersThatOneWouldMultiplyBy) {
  for (const int per_node : node_sizes_of_world())
    for (const auto dtype : {DType::bf16, DType::f32}) {
      ModelOnAllRanks on(per_node);
      Fp8Gather gather(on.axis(), on.layout, on.units, dtype);
      int taken = 0;
      for (const auto u : on.units) {
        if (!gather.takes(u)) continue;
        ++taken;
        SCOPED_TRACE(on.layout.units()[u].name);
        const auto values = numbers_of_unit(on.layout, u, dtype);
        auto expected = rounded_by_rows(on.layout, u, values);
        EXPECT_NE(expected, values);
        expected.resize(static_cast<std::size_t>(on.layout.units()[u].numel));
        EXPECT_EQ(gathered_unit(on, gather, u, values, dtype), expected);
        EXPECT_EQ(gathered_unit(on, gather, u, values, dtype), expected) << "again";
      }
      EXPECT_EQ(taken, 2) << "layers, but neither embedding nor head";
    }
}

TEST(Fp8Gather, KnowsWeightsThatHaveChanged) {
  ModelOnAllRanks on(1);
  Fp8Gather gather(on.axis(), on.layout, on.units, DType::bf16);
  const std::size_t unit = 1;
  ASSERT_TRUE(gather.takes(unit));
  auto values = numbers_of_unit(on.layout, unit, DType::bf16);
  gathered_unit(on, gather, unit, values, DType::bf16);
  for (auto& value : values) value *= 1024;
  gather.on_weights_changed(unit);
  auto expected = rounded_by_rows(on.layout, unit, values);
  expected.resize(static_cast<std::size_t>(on.layout.units()[unit].numel));
  EXPECT_EQ(gathered_unit(on, gather, unit, values, DType::bf16), expected);
}

TEST(Fp8Gather, MakesARowNanThatHasANumberThatIsNotFinite) {
  for (const int per_node : node_sizes_of_world()) {
    ModelOnAllRanks on(per_node);
    Fp8Gather gather(on.axis(), on.layout, on.units, DType::bf16);
    const std::size_t unit = 1;
    auto values = numbers_of_unit(on.layout, unit, DType::bf16);
    for (const auto id : on.layout.units()[unit].parameters)
      if (on.layout.table().is_linear(id))  // in its second row
        values[static_cast<std::size_t>(on.layout.place(id).offset +
                                        on.layout.local_shape(id).back() + 1)] =
            std::numeric_limits<float>::infinity();
    const auto result = gathered_unit(on, gather, unit, values, DType::bf16);
    for (const auto id : on.layout.units()[unit].parameters) {
      const auto& shape = on.layout.local_shape(id);
      for (std::int64_t i = 0; i < numel(shape); ++i)
        ASSERT_EQ(std::isnan(result[static_cast<std::size_t>(on.layout.place(id).offset + i)]),
                  on.layout.table().is_linear(id) && i / shape.back() == 1)
            << on.table[id].name << " " << i;
    }
  }
}

}  // namespace
}  // namespace llamesh::test
