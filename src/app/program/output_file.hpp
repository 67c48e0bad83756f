#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace llamesh::app {

/// Policy for a file that already exists (--force).
enum class Existing : bool { refuse, replace };

/// A file named by the user for a command to write. "-" is standard output: the command writes a
/// temporary file, and finish() copies it there.
class OutputFile {
 public:
  /// Throws a user error if the name must not be written: an existing file with Existing::refuse,
  /// and always a folder, a symbolic link, a FIFO, a socket or a device.
  OutputFile(const std::string& name, Existing existing);
  /// Removes the temporary file.
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Returns the path for the command to write.
  const std::filesystem::path& path() const { return path_; }
  bool is_stdout() const { return !temporary_folder_.empty(); }
  /// Copies the complete file to standard output if requested.
  void finish() const;

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_folder_;
};

/// Output format: text, or one JSON object (docs/json.md).
enum class Output : bool { text, json };

using Json = nlohmann::ordered_json;

/// Prints one JSON object on a line, for --json (docs/json.md). Numbers round-trip; non-finite ones
/// become null, and bytes that are not UTF-8 become U+FFFD.
inline void print_json(const Json& object) {
  fmt::print("{}\n", object.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace llamesh::app
