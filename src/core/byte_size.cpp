#include "core/byte_size.hpp"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace llamesh {

std::optional<std::int64_t> parse_byte_size(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, double>, 10> units{{{"", 1},
                                                                       {"B", 1},
                                                                       {"KB", 1e3},
                                                                       {"MB", 1e6},
                                                                       {"GB", 1e9},
                                                                       {"TB", 1e12},
                                                                       {"KiB", 0x1p10},
                                                                       {"MiB", 0x1p20},
                                                                       {"GiB", 0x1p30},
                                                                       {"TiB", 0x1p40}}};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{}) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const auto& [name, factor] : units) {
    const double bytes = number * factor;
    if (unit == name && bytes >= 0 && bytes < 0x1p63 && bytes == std::trunc(bytes))
      return static_cast<std::int64_t>(bytes);
  }
  return std::nullopt;
}

}  // namespace llamesh
