#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/tree.hpp"
#include "core/enum_names.hpp"
#include "core/range.hpp"
#include "train/setup/run_inputs.hpp"

namespace llamesh::config {

/// Reader that fills variables from a tree. A missing key leaves its variable unchanged. Every key
/// that is read becomes known; `finish` refuses the rest. All errors are user errors that begin
/// with file and line. KeyWriter has the same functions, so one list of keys drives both
/// (config/keys.hpp).
class KeyReader {
 public:
  explicit KeyReader(const Node& root) : root_(&root), here_(&root) {}

  /// Reads the keys below `name` with `body`.
  template <class Body>
  void section(std::string_view name, Body body) {
    refuse_reset(name);
    read_section(name, body);
  }
  /// Reads a section that may be absent or null.
  template <class T, class Body>
  void optional_section(std::string_view name, std::optional<T>& value, Body body) {
    if (const Node* node = here_ ? here_->find(name) : nullptr)
      value = node->kind == Node::Kind::null ? std::nullopt : std::optional<T>(T{});
    T scratch{};
    read_section(name, [&] { body(value ? *value : scratch); });
  }

  template <std::integral T>
  void key(std::string_view name, T& value, Range range, std::string_view expected = "an integer") {
    // 64-bit limits are rounded to doubles; no valid key comes near them.
    const Range of_type = from_to(static_cast<double>(std::numeric_limits<T>::min()),
                                  static_cast<double>(std::numeric_limits<T>::max()));
    if (const auto read = integer(name, range, of_type, expected)) value = static_cast<T>(*read);
  }
  void key(std::string_view name, double& value, Range range);
  /// Reads a size with parse_byte_size().
  void bytes(std::string_view name, std::int64_t& value);
  void key(std::string_view name, bool& value);
  void key(std::string_view name, std::string& value);
  /// Reads a partition spec from include_spec(), or null.
  void key(std::string_view name, std::optional<sharding::Spec>& value);
  /// Reads auto, true, false or a number of ranks.
  void key(std::string_view name, sharding::ReshardAfterForward& value);
  /// Reads a list of numbers.
  void key(std::string_view name, std::vector<double>& value, Range range);
  /// Reads a list of integers.
  void key(std::string_view name, std::vector<std::int64_t>& value, Range range);
  /// Reads a list of strings, or one string.
  void key(std::string_view name, std::vector<std::string>& value);
  /// Reads a string or a list of strings, or else a list of groups, whose keys `body` reads into
  /// one element of `groups` at a time. Fills one of the two and clears the other.
  template <class T, class Body>
  void words_or_groups(std::string_view name, std::vector<std::string>& words,
                       std::vector<T>& groups, Body body) {
    const Node* node = lookup(name);
    if (node == nullptr) return;
    groups.clear();
    if (!is_list_of_groups(*node, name)) return key(name, words);
    words.clear();
    for (std::size_t i = 0; i < node->items.size(); ++i)
      inside(node->items[i], fmt::format("{}[{}]", name, i), [&] { body(groups.emplace_back()); });
  }
  /// Reads a map of names to strings or lists of strings, in the file's order.
  void named_words(std::string_view name, std::vector<train::ValidationSet>& value);
  template <class E>
  requires std::is_enum_v<E>
  void key(std::string_view name, E& value) {
    const auto table = enum_names(E{});
    std::vector<std::string_view> words;
    for (const auto& entry : table.words) words.push_back(entry.first);
    if (const auto index = word(name, words)) value = table.words[*index].second;
  }
  /// Reads an integer of at least 1, or `auto` (also 0), which is stored as 0.
  template <std::integral T>
  void automatic(std::string_view name, T& value, Range range = at_least(0)) {
    if (is_auto(name))
      value = 0;
    else
      key(name, value, range, "an integer or auto");
  }
  /// Reads a list of integers, or `auto`, which is stored as an empty one.
  void automatic(std::string_view name, std::vector<std::int64_t>& value, Range range);
  /// Reads a list of two numbers.
  void pair(std::string_view name, double& first, double& second, Range range);
  /// Reads a list of pairs of numbers whose first ones ascend.
  void pairs(std::string_view name, std::vector<std::pair<double, double>>& value, Range range);
  /// Marks a key that was processed before as known.
  void handled(std::string_view name) { lookup(name); }

  /// Throws for the first unknown key, and names the closest known one.
  void finish() const;

 private:
  template <class Body>
  void read_section(std::string_view name, Body body) {
    const Node* outside = here_;
    const std::string prefix = prefix_;
    here_ = enter(name);
    prefix_ = path(name) + '.';
    body();
    here_ = outside;
    prefix_ = prefix;
  }
  void refuse_reset(std::string_view name) const;
  std::string path(std::string_view name) const { return prefix_ + std::string(name); }
  const Node* lookup(std::string_view name);
  const Node* enter(std::string_view name);
  static std::vector<std::string> words_in(const Node& node, const std::string& path);
  bool is_list_of_groups(const Node& node, std::string_view name) const;
  /// Reads the keys in `group`, named `name`, with `body`; refuses all others at once.
  template <class Body>
  void inside(const Node& group, std::string_view name, Body body) {
    const Node* outside = here_;
    const std::string prefix = prefix_;
    here_ = &group;
    prefix_ = path(name) + '.';
    body();
    refuse_unknown(group, prefix_);
    here_ = outside;
    prefix_ = prefix;
  }
  const Node* scalar(std::string_view name, std::string_view expected);
  bool is_auto(std::string_view name);
  std::optional<std::int64_t> integer(std::string_view name, Range range, Range of_type,
                                      std::string_view expected);
  double number(const Node& node, std::string_view name, Range range) const;
  std::pair<double, double> pair_of(const Node& node, std::string_view name, Range range) const;
  std::optional<std::size_t> word(std::string_view name,
                                  const std::vector<std::string_view>& words);
  void refuse_unknown(const Node& node, const std::string& prefix) const;

  const Node* root_;
  const Node* here_;  ///< null inside an absent section
  std::string prefix_;
  std::set<std::string> known_;  ///< leaves
  std::set<std::string> sections_;
};

/// Returns a hint for another program's key: "; did you mean 'optimizer.lr'?" for learning_rate, by
/// the key's last part or the whole key. Empty if there is none.
std::string hint_for_key(std::string_view key);

/// Returns our word for another program's value: bf16 for bfloat16. Empty if there is none.
std::string_view value_for(std::string_view theirs);

}  // namespace llamesh::config
