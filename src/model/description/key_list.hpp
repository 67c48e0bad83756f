#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <initializer_list>
#include <string_view>

#include "model/description/model_config.hpp"

namespace llamesh::model {

/// Names of model_keys, in a constant expression.
class KeyList {
 public:
  constexpr KeyList(std::initializer_list<std::string_view> names) {
    for (const auto name : names) {
      if (!is_model_key(name)) throw name;  // ends compilation
      names_.at(size_++) = name;
    }
  }
  constexpr bool contains(std::string_view name) const {
    return std::find(begin(), end(), name) != end();
  }
  /// Returns the names in both.
  constexpr KeyList with(const KeyList& others) const {
    KeyList all = *this;
    for (const auto name : others) all.names_.at(all.size_++) = name;
    return all;
  }
  constexpr const std::string_view* begin() const { return names_.data(); }
  constexpr const std::string_view* end() const { return names_.data() + size_; }

 private:
  std::array<std::string_view, 32> names_;
  std::size_t size_ = 0;
};

}  // namespace llamesh::model
