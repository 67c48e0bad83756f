#pragma once

#include <cstdint>

#include "core/tensor.hpp"

namespace llamesh::ops::cpu {

/// Where the documents of packed rows start, as ops.hpp describes it: one number a token, or none
/// at all. Then a row is one document.
class DocumentStarts {
 public:
  /// Throws where `starts` has another length than B T = `tokens`, or a number in it is neither
  /// that of the token before nor the token itself. `starts` is borrowed.
  DocumentStarts(const Tensor& starts, std::int64_t tokens, std::int64_t sequence);

  /// The numbers from token m of B T on, or null.
  const std::int32_t* from(std::int64_t m) const { return first_ ? first_ + m : nullptr; }

 private:
  const std::int32_t* first_ = nullptr;
};

}  // namespace llamesh::ops::cpu
