#pragma once

#include <fmt/format.h>

#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/enum_names.hpp"
#include "core/range.hpp"
#include "train/setup/run_inputs.hpp"

namespace llamesh::config {

/// Formats a string as YAML: plain if that is safe, else in double quotes.
std::string yaml_word(std::string_view word);

/// Writer that produces YAML text which KeyReader reads back to the same values. Its functions
/// mirror KeyReader's.
class KeyWriter {
 public:
  const std::string& text() const { return text_; }

  template <class Body>
  void section(std::string_view name, Body body) {
    line(name, "");
    indent_ += 2;
    body();
    indent_ -= 2;
  }
  template <class T, class Body>
  void optional_section(std::string_view name, std::optional<T>& value, Body body) {
    if (value)
      section(name, [&] { body(*value); });
    else
      line(name, " null");
  }

  template <class T>
  requires(std::integral<T> || std::floating_point<T>) void key(std::string_view name, T value,
                                                                Range) {
    line(name, fmt::format(" {}", value));
  }
  void bytes(std::string_view name, std::int64_t value) { key(name, value, {}); }
  void key(std::string_view name, bool value) { line(name, value ? " true" : " false"); }
  void key(std::string_view name, const std::string& value) { line(name, ' ' + yaml_word(value)); }
  void key(std::string_view name, const std::vector<std::int64_t>& value, Range);
  void key(std::string_view name, const std::vector<double>& value, Range);
  void key(std::string_view name, const std::vector<std::string>& value);
  void key(std::string_view name, const std::optional<sharding::Spec>& value);
  void key(std::string_view name, sharding::ReshardAfterForward value);
  template <class T, class Body>
  void words_or_groups(std::string_view name, const std::vector<std::string>& words,
                       std::vector<T>& groups, Body body) {
    if (groups.empty()) return key(name, words);
    line(name, "");
    for (T& group : groups) {
      text_ += fmt::format("{:{}}  -\n", "", indent_);
      indent_ += 4;
      body(group);
      indent_ -= 4;
    }
  }
  void named_words(std::string_view name, const std::vector<train::ValidationSet>& value);
  template <class E>
  requires std::is_enum_v<E>
  void key(std::string_view name, E value) {
    line(name, fmt::format(" {}", name_in_inputs(value)));
  }
  void automatic(std::string_view name, const std::vector<std::int64_t>& value, Range range) {
    if (value.empty())
      line(name, " auto");
    else
      key(name, value, range);
  }
  template <std::integral T>
  void automatic(std::string_view name, T value, Range = {}) {
    line(name, value == 0 ? " auto" : fmt::format(" {}", value));
  }
  void pair(std::string_view name, double first, double second, Range) {
    line(name, fmt::format(" [{}, {}]", first, second));
  }
  void pairs(std::string_view name, const std::vector<std::pair<double, double>>& value, Range);
  void handled(std::string_view) {}

 private:
  void line(std::string_view name, std::string_view value) {
    text_ += fmt::format("{:{}}{}:{}\n", "", indent_, name, value);
  }

  std::string text_;
  int indent_ = 0;
};

}  // namespace llamesh::config
