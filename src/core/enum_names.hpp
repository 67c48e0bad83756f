#pragma once

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace llamesh {

/// Names of an enum's values in input files and on the command line. An enum that inputs may choose
/// from has a function enum_names(E) beside it, found by its argument.
template <class E>
struct EnumNames {
  std::vector<std::pair<std::string_view, E>> words;
};

/// Returns the value that a word in the inputs stands for.
template <class E>
std::optional<E> value_of_name(std::string_view word) {
  for (const auto& [name, value] : enum_names(E{}).words)
    if (name == word) return value;
  return std::nullopt;
}

/// Returns the word for a value that inputs may choose.
template <class E>
std::string_view name_in_inputs(E value) {
  for (const auto& [name, named] : enum_names(E{}).words)
    if (named == value) return name;
  return {};
}

}  // namespace llamesh
