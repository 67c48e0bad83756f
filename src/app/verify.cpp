#include "app/verify.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "checkpoint/reader.hpp"

namespace llamesh::app {

int verify(const std::string& path) {
  validate(std::filesystem::is_directory(path), "{} is not a checkpoint folder", path);
  const auto damage = checkpoint::find_damage(path);
  for (const auto& line : damage) fmt::print("{}\n", line);
  if (damage.empty()) fmt::print("{}: all good\n", path);
  return static_cast<int>(damage.empty() ? ExitCode::done : ExitCode::io_failure);
}

}  // namespace llamesh::app
