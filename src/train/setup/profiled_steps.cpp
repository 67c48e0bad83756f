#include "train/setup/profiled_steps.hpp"

#include <charconv>
#include <string>
#include <system_error>

#include "core/error.hpp"

namespace llamesh::train {

StepRange profiled_steps(const ProfileOptions& options) {
  const std::string& text = options.steps;
  if (text.empty()) return {};
  StepRange steps;
  const char* const end = text.data() + text.size();
  auto read = std::from_chars(text.data(), end, steps.first);
  bool valid = read.ec == std::errc();
  steps.last = steps.first;
  if (valid && read.ptr != end && *read.ptr == '-') {
    read = std::from_chars(read.ptr + 1, end, steps.last);
    valid = read.ec == std::errc();
  }
  validate(valid && read.ptr == end && steps.first >= 1 && steps.first <= steps.last,
           "profile.steps is '{}': give FIRST-LAST, as in 10-12, or the number of one step, from 1",
           text);
  return steps;
}

}  // namespace llamesh::train
