#pragma once

#include <cstring>
#include <map>
#include <vector>

#include "core/philox.hpp"
#include "device/buffer.hpp"
#include "model/layers/weights.hpp"
#include "ops/ops.hpp"

namespace llamesh::test {

/// model::Weights in a single place, for one rank: the reference for every sharding. Checks that
/// the model reads and writes a parameter only inside its module.
class LocalWeights final : public model::Weights {
 public:
  LocalWeights(const model::ParameterTable& table, DType dtype = DType::f32)
      : table_(table),
        values_(table.numel() * 4),
        cast_(table.numel() * 2),
        gradients_(table.numel() * 4),
        dtype_(dtype),
        written_(table.parameters.size(), false),
        entered_(table.modules.size(), 0) {
    std::int64_t at = 0;
    for (const auto& p : table.parameters) {
      offset_.push_back(at);
      at += p.numel();
    }
  }

  void initialize(std::uint64_t seed, float stddev) {
    for (std::size_t i = 0; i < table_.parameters.size(); ++i) {
      const auto& p = table_.parameters[i];
      const auto out = master(static_cast<model::ParameterId>(i)).span<float>();
      if (p.initial == model::Initial::ones)
        std::fill(out.begin(), out.end(), 1.0F);
      else
        fill_normal(out.data(), 0, p.numel(), seed, p.name, stddev);
    }
  }
  Tensor master(model::ParameterId id) const { return view(values_, DType::f32, id); }
  Tensor gradient_of(model::ParameterId id) const { return view(gradients_, DType::f32, id); }
  Tensor all_values() const { return values_.tensor(DType::f32, {table_.numel()}); }
  Tensor all_gradients() const { return gradients_.tensor(DType::f32, {table_.numel()}); }
  void forget_gradients() { written_.assign(written_.size(), false); }

  void enter(model::ModuleId module, model::Pass) override { ++entered_[model::index(module)]; }
  void leave(model::ModuleId module, model::Pass) override { --entered_[model::index(module)]; }
  Tensor parameter(model::ParameterId id) override {
    check_entered(id);
    if (dtype_ == DType::f32) return master(id);
    auto stream = device::Stream::calling_thread();
    ops::copy(stream, view(cast_, dtype_, id), master(id));
    return view(cast_, dtype_, id);
  }
  model::GradientSlot gradient(model::ParameterId id) override {
    check_entered(id);
    if (table_[id].frozen) return {{}, Accumulate::no};
    auto written = written_[model::index(id)];
    const auto how = written ? Accumulate::yes : Accumulate::no;
    written = true;
    return {gradient_of(id), how};
  }
  void no_gradient(model::ParameterId id) override {
    const auto [tensor, how] = gradient(id);
    if (tensor && how == Accumulate::no) std::ranges::fill(tensor.span<float>(), 0.0F);
  }

 private:
  /// Allows a tied head to read the embedding's weight inside its own module.
  void check_entered(model::ParameterId id) const {
    const bool head =
        id == table_.lm_head.weight && entered_[model::index(table_.lm_head.module)] > 0;
    expects(head || entered_[model::index(table_[id].module)] > 0, "{} outside of its module",
            table_[id].name);
  }
  Tensor view(const device::Buffer& buffer, DType dtype, model::ParameterId id) const {
    const auto& p = table_[id];
    const std::int64_t at = offset_[model::index(id)] * size_of(dtype);
    return buffer.tensor(dtype, {p.numel()}, at).reshape(p.shape);
  }

  const model::ParameterTable& table_;
  device::Buffer values_, cast_, gradients_;
  DType dtype_;
  std::vector<bool> written_;
  std::vector<int> entered_;
  std::vector<std::int64_t> offset_;
};

}  // namespace llamesh::test
