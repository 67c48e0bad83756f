#pragma once

namespace llamesh {

/// Whether a result overwrites what was there or is added to it.
enum class Accumulate : bool { no, yes };

}  // namespace llamesh
