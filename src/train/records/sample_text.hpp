#pragma once

#include <string>

namespace llamesh::train {

/// A prompt, and how the model went on.
struct SampleText {
  std::string prompt, text;
};

}  // namespace llamesh::train
