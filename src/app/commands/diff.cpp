#include "app/commands/commands.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "app/models/tensor_source.hpp"
#include "app/program/options.hpp"
#include "checkpoint/format/format.hpp"
#include "checkpoint/store/location.hpp"

namespace llamesh::app {
namespace {

/// Maps tensors by the names to compare: against a Hugging Face folder a checkpoint is only its
/// model.
std::map<std::string, const TensorSource::Entry*> by_name(const TensorSource& source,
                                                          bool model_only) {
  std::map<std::string, const TensorSource::Entry*> entries;
  for (const auto& entry : source.entries()) {
    const auto parameter = checkpoint::model_parameter(entry.name);
    if (!model_only || !source.has_groups())
      entries[entry.name] = &entry;
    else if (!parameter.empty())
      entries[std::string(parameter)] = &entry;
  }
  return entries;
}

/// Difference between two tensors with the same shape.
struct Difference {
  double max_abs = 0;
  double max_relative = 0;
  std::size_t not_comparable = 0;  ///< with a non-finite difference
};

/// Returns the difference; nothing if they are bit-identical.
std::optional<Difference> compare(const std::vector<float>& x, const std::vector<float>& y) {
  if (std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0) return std::nullopt;
  Difference result;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double difference = std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i]));
    if (!std::isfinite(difference)) ++result.not_comparable;
    result.max_abs = std::max(result.max_abs, difference);
    const double scale = std::max(std::abs(x[i]), std::abs(y[i]));
    if (scale > 0) result.max_relative = std::max(result.max_relative, difference / scale);
  }
  return result;
}

/// Findings, printed to the terminal line by line, or as one JSON object.
class Findings {
 public:
  explicit Findings(Output output) : output_(output) {}

  void add(const std::string& name, const Difference& d) {
    add({{"name", name},
         {"max_abs", d.max_abs},
         {"max_relative", d.max_relative},
         {"not_comparable", d.not_comparable}},
        fmt::format(
            "max abs {:.3e}, max relative {:.3e}{}", d.max_abs, d.max_relative,
            d.not_comparable > 0 ? fmt::format(", {} not comparable", d.not_comparable) : ""));
  }
  void add_missing(const std::string& name, bool in_first) {
    add({{"name", name}, {"only_in", in_first ? "a" : "b"}},
        in_first ? "only in the first" : "only in the second");
  }
  void add_shapes(const std::string& name, const TensorSource::Entry& a,
                  const TensorSource::Entry& b) {
    add({{"name", name}, {"shape_a", a.shape}, {"shape_b", b.shape}}, "shapes differ");
  }
  /// Prints the result for `tensors` compared tensors; returns true if all are equal.
  bool conclude(const std::string& a, const std::string& b, std::size_t tensors) const {
    const bool equal = different_.empty();
    if (output_ == Output::json)
      print_json(
          {{"a", a}, {"b", b}, {"equal", equal}, {"tensors", tensors}, {"different", different_}});
    else
      fmt::print("{}\n", equal ? fmt::format("equal: {} tensors", tensors)
                               : fmt::format("{} tensors differ", different_.size()));
    return equal;
  }

 private:
  void add(Json entry, const std::string& text) {
    if (output_ == Output::text) fmt::print("{:<60} {}\n", entry["name"].get<std::string>(), text);
    different_.push_back(std::move(entry));
  }

  Output output_;
  Json different_ = Json::array();
};

}  // namespace

int diff(const std::string& a, const std::string& b, Output output) {
  const auto at_first = checkpoint::locate(a), at_second = checkpoint::locate(b);
  auto first = open_tensors(at_first), second = open_tensors(at_second);
  if (at_first.kind == checkpoint::PathKind::hf_folder && second->has_groups())
    first = open_parameters(at_first.path);
  if (at_second.kind == checkpoint::PathKind::hf_folder && first->has_groups())
    second = open_parameters(at_second.path);
  const bool model_only = !first->has_groups() || !second->has_groups();
  const auto of_first = by_name(*first, model_only);
  const auto of_second = by_name(*second, model_only);
  Findings findings(output);
  for (const auto& [name, entry] : of_first) {
    const auto found = of_second.find(name);
    if (found == of_second.end())
      findings.add_missing(name, true);
    else if (found->second->shape != entry->shape)
      findings.add_shapes(name, *entry, *found->second);
    else if (const auto d = compare(first->load(*entry), second->load(*found->second)))
      findings.add(name, *d);
  }
  for (const auto& [name, entry] : of_second)
    if (!of_first.contains(name)) findings.add_missing(name, false);
  return findings.conclude(a, b, of_first.size()) ? 0 : 1;
}

void declare_diff(CLI::App& parser, Run& chosen) {
  auto& command =
      add_command(parser, "diff", "Compare two models or checkpoints tensor by tensor",
                  {"llamesh diff runs/first runs/second", "llamesh diff runs/tiny hf:FOLDER"});
  auto& [a, b, output] = runs(command, chosen, diff);
  command.add_option("A", a, tensor_source_help)->required();
  command.add_option("B", b, tensor_source_help)->required();
  add_json(command, output);
}

}  // namespace llamesh::app
