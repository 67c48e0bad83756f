#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace llamesh {

/// Reads a size in bytes: a number, also with a fraction, and B, KB, MB, GB, TB (powers of 1000, as
/// Hugging Face reads them) or KiB, MiB, GiB, TiB (powers of 1024), or no unit. Returns nothing for
/// any other text, and for sizes that are no whole number of bytes or do not fit into 63 bits.
std::optional<std::int64_t> parse_byte_size(std::string_view text);

}  // namespace llamesh
