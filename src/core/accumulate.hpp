#pragma once

namespace llamesh {

/// Write mode for a result: overwrite (`no`) or add (`yes`).
enum class Accumulate : bool { no, yes };

}  // namespace llamesh
