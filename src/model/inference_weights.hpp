#pragma once

#include <vector>

#include "device/buffer.hpp"
#include "model/layers/weights.hpp"

namespace llamesh::model {

/// All of a model's weights on this rank, in the compute dtype, for inference only. Parameters are
/// stored in table order, so that matrices used together form one matrix for a GEMM.
class InferenceWeights final : public Weights {
 public:
  /// `table` is borrowed. Values are zero until filled in through values().
  InferenceWeights(const ParameterTable& table, DType dtype) : table_(table), dtype_(dtype) {
    std::int64_t at = 0;
    for (const auto& parameter : table.parameters) {
      offsets_.push_back(at);
      at += parameter.numel();
    }
    buffer_ = device::Buffer(at * size_of(dtype));
  }

  /// Returns a parameter's values for reading and writing.
  Tensor values(ParameterId id) const {
    const auto& parameter = table_[id];
    const auto at = offsets_[index(id)] * size_of(dtype_);
    return buffer_.tensor(dtype_, {parameter.numel()}, at).reshape(parameter.shape);
  }
  std::int64_t bytes() const { return buffer_.bytes(); }

  void enter(ModuleId /*module*/, Pass /*pass*/) override {}
  void leave(ModuleId /*module*/, Pass /*pass*/) override {}
  Tensor parameter(ParameterId id) override { return values(id); }
  GradientSlot gradient(ParameterId id) override {
    expects(false, "frozen weights have no gradient ({})", table_[id].name);
    return {};
  }
  void no_gradient(ParameterId id) override { gradient(id); }

 private:
  const ParameterTable& table_;
  DType dtype_;
  device::Buffer buffer_;
  std::vector<std::int64_t> offsets_;
};

}  // namespace llamesh::model
