#include "app/diff.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string_view>
#include <vector>

#include "app/tensor_source.hpp"

namespace llamesh::app {
namespace {

constexpr std::string_view model_group = "/model/";

/// The tensors of a source under the names by which they are compared: beside a Hugging Face folder
/// a checkpoint is only its model.
std::map<std::string, const TensorSource::Entry*> by_name(const TensorSource& source,
                                                          bool model_only) {
  std::map<std::string, const TensorSource::Entry*> entries;
  for (const auto& entry : source.entries()) {
    const bool model = entry.name.starts_with(model_group);
    if (!model_only || !source.has_groups())
      entries[entry.name] = &entry;
    else if (model)
      entries[entry.name.substr(model_group.size())] = &entry;
  }
  return entries;
}

/// Prints the difference of two tensors of one shape; whether they are equal bit for bit.
bool compare(const std::string& name, const std::vector<float>& x, const std::vector<float>& y) {
  if (std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0) return true;
  double absolute = 0;
  double relative = 0;
  std::size_t not_numbers = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double difference = std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i]));
    if (!std::isfinite(difference)) ++not_numbers;
    absolute = std::max(absolute, difference);
    const double scale = std::max(std::abs(x[i]), std::abs(y[i]));
    if (scale > 0) relative = std::max(relative, difference / scale);
  }
  fmt::print("{:<60} max abs {:.3e}, max relative {:.3e}{}\n", name, absolute, relative,
             not_numbers > 0 ? fmt::format(", {} not comparable", not_numbers) : "");
  return false;
}

}  // namespace

int diff(const std::string& a, const std::string& b) {
  const auto first = open_tensors(a);
  const auto second = open_tensors(b);
  const bool model_only = !first->has_groups() || !second->has_groups();
  const auto of_first = by_name(*first, model_only);
  const auto of_second = by_name(*second, model_only);
  std::size_t different = 0;
  for (const auto& [name, entry] : of_first) {
    const auto found = of_second.find(name);
    if (found == of_second.end() || found->second->shape != entry->shape) {
      fmt::print("{:<60} {}\n", name,
                 found == of_second.end() ? "only in the first" : "of another shape");
      ++different;
    } else if (!compare(name, first->load(*entry), second->load(*found->second))) {
      ++different;
    }
  }
  for (const auto& [name, entry] : of_second)
    if (!of_first.contains(name)) {
      fmt::print("{:<60} only in the second\n", name);
      ++different;
    }
  fmt::print("{}\n", different == 0 ? fmt::format("equal: {} tensors", of_first.size())
                                    : fmt::format("{} tensors differ", different));
  return different == 0 ? 0 : 1;
}

}  // namespace llamesh::app
