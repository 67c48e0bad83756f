#include "app/program/output_file.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/file.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view standard_output = "-";

const char* kind_of(fs::file_type type) {
  return type == fs::file_type::directory ? "a folder"
         : type == fs::file_type::symlink ? "a symbolic link"
                                          : "not a regular file";
}

void check_name(const fs::path& path, Existing existing) {
  std::error_code error;
  const auto folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  validate(fs::is_directory(folder, error), "'{}': the folder {} does not exist; create it first",
           path.string(), folder.string());
  const auto type = fs::symlink_status(path, error).type();
  if (type == fs::file_type::not_found || type == fs::file_type::none) return;
  validate(type == fs::file_type::regular,
           "'{}' is {}, so it will not be overwritten; name another file, or - for standard output",
           path.string(), kind_of(type));
  validate(existing == Existing::replace,
           "'{}' exists; choose another name, or replace the file with --force", path.string());
}

fs::path make_temporary_folder() {
  auto name = (fs::temp_directory_path() / "llamesh-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr)
    fail(ExitCode::io_failure, "cannot make the temporary folder {}: {}", name,
         std::strerror(errno));
  return name;
}

}  // namespace

OutputFile::OutputFile(const std::string& name, Existing existing) : path_(name) {
  if (name == standard_output) {
    temporary_folder_ = make_temporary_folder();
    path_ = temporary_folder_ / "output";
  } else {
    check_name(path_, existing);
  }
}

OutputFile::~OutputFile() {
  std::error_code ignored;
  if (is_stdout()) fs::remove_all(temporary_folder_, ignored);
}

void OutputFile::finish() const {
  if (!is_stdout()) return;
  const auto file = Descriptor::to_read(path_, ExitCode::io_failure);
  std::string piece(1 << 20, '\0');
  for (std::int64_t at = 0;;) {
    const auto count = file.read_some(at, piece.data(), std::ssize(piece));
    if (count == 0) return;
    std::fwrite(piece.data(), 1, static_cast<std::size_t>(count), stdout);  // main() checks stdout
    at += count;
  }
}

}  // namespace llamesh::app
