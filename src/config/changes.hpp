#pragma once

#include <string>
#include <vector>

namespace llamesh::config {

/// Lists the differences between a run's resolved inputs (to_yaml) before and now, key by key:
/// "optimizer.lr 0.001 -> 0.0005". Skips groups that do not affect training (run, checkpoint, log,
/// debug), and keys that only one text has, as with another llamesh version. Returns nothing if
/// `before` is no such text.
std::vector<std::string> changes(const std::string& before, const std::string& now);

}  // namespace llamesh::config
