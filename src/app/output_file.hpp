#pragma once

#include <filesystem>
#include <string>

namespace llamesh::app {

/// Whether a command may replace a file that exists (--force).
enum class Existing : bool { refuse, replace };

/// The file that a user names for a command to write. "-" is standard output: the command writes a
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

  /// Where the command writes.
  const std::filesystem::path& path() const { return path_; }
  bool is_stdout() const { return !temporary_folder_.empty(); }
  /// Copies the complete file to standard output if that was asked for.
  void finish() const;

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_folder_;
};

}  // namespace llamesh::app
