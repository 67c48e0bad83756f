#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "config/include.hpp"

namespace llamesh::config {

/// Source for the values of keys, for messages: the input file or the command line. Borrows both.
class KeySource {
 public:
  KeySource(const std::string& name, const std::vector<std::string>& overrides)
      : name_(name), overrides_(overrides) {}

  /// Returns "run.yaml", or "command line" if an override sets one of the keys.
  std::string of(std::initializer_list<const char*> keys) const {
    const bool overridden =
        std::ranges::any_of(keys, [&](const char* key) { return sets(overrides_, key); });
    return overridden ? "command line" : name_;
  }
  /// Returns "run.yaml: data.train" or "command line: data.train".
  std::string with(const char* key) const { return fmt::format("{}: {}", of({key}), key); }

 private:
  const std::string& name_;
  const std::vector<std::string>& overrides_;
};

}  // namespace llamesh::config
