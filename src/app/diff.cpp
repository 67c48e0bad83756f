#include "app/diff.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "checkpoint/reader.hpp"

namespace llamesh::app {
namespace {

std::vector<float> load(const std::string& path, const checkpoint::DatasetEntry& entry) {
  std::vector<float> all(static_cast<std::size_t>(entry.numel()));
  checkpoint::for_each_segment(path, entry, [&](std::int64_t begin, std::span<const float> values) {
    std::ranges::copy(values, all.begin() + begin);
  });
  return all;
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
  const auto first = checkpoint::read_manifest(a);
  const auto second = checkpoint::read_manifest(b);
  std::size_t different = 0;
  for (const auto& entry : first.datasets) {
    const auto* other = second.find(entry.path);
    if (other == nullptr || other->shape != entry.shape) {
      fmt::print("{:<60} {}\n", entry.path,
                 other == nullptr ? "only in the first" : "of another shape");
      ++different;
    } else if (!compare(entry.path, load(a, entry), load(b, *other))) {
      ++different;
    }
  }
  for (const auto& entry : second.datasets)
    if (first.find(entry.path) == nullptr) {
      fmt::print("{:<60} only in the second\n", entry.path);
      ++different;
    }
  fmt::print("{}\n", different == 0 ? fmt::format("equal: {} tensors", first.datasets.size())
                                    : fmt::format("{} tensors differ", different));
  return different == 0 ? 0 : 1;
}

}  // namespace llamesh::app
