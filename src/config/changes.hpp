#pragma once

#include <string>
#include <vector>

namespace llamesh::config {

/// What differs between the resolved inputs (to_yaml) of a run before and now, key by key:
/// "optimizer.lr 0.001 -> 0.0005". The groups that do not affect the training (run, checkpoint,
/// log, debug) are left out, and keys that only one of the texts has, as of another version of
/// llamesh. Empty when `before` is no such text.
std::vector<std::string> changes(const std::string& before, const std::string& now);

}  // namespace llamesh::config
