#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"

namespace llamesh::test {

/// A time limit that ends a test with a signal if it waits forever.
class TimeLimit {
 public:
  explicit TimeLimit(unsigned seconds) { alarm(seconds); }
  ~TimeLimit() { alarm(0); }
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;
};

inline void make_socket(const std::filesystem::path& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const auto name = path.string();
  expects(name.size() < sizeof(address.sun_path), "the name is too long for a socket");
  name.copy(address.sun_path, name.size());
  expects(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0,
          "no socket at {}", name);
  close(fd);
}

/// Kinds of files that may lie where a regular file is expected.
inline const std::vector<std::string>& hostile_kinds() {
  static const std::vector<std::string> kinds{
      "fifo",         "socket",         "folder",           "device",
      "link to fifo", "link to socket", "link to a folder", "link to a device"};
  return kinds;
}

/// Creates one there, replacing anything already there. Links lead to `path` + ".target".
inline void put_hostile(const std::string& kind, const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  fs::path at = path;
  fs::remove_all(path);
  if (kind.starts_with("link")) {
    at += ".target";
    fs::remove_all(at);
    fs::create_symlink(kind.ends_with("device") ? fs::path("/dev/zero") : at, path);
  }
  if (kind.ends_with("fifo"))
    expects(mkfifo(at.c_str(), 0600) == 0, "no FIFO at {}", at.string());
  else if (kind.ends_with("socket"))
    make_socket(at);
  else if (kind.ends_with("folder"))
    fs::create_directory(at);
  else if (kind == "device")  // only root may make one
    fs::create_symlink("/dev/zero", path);
}

/// Creates a file with `bytes` that begins with `text` and takes no disk space beyond it.
inline void put_sparse(const std::filesystem::path& path, std::uintmax_t bytes,
                       const std::string& text = "") {
  std::filesystem::remove_all(path);
  std::ofstream(path) << text;
  std::filesystem::resize_file(path, bytes);
}

/// Returns a safetensors file with this header, valid or not, and this data.
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  std::string bytes(8, '\0');
  for (unsigned i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes.append(header).append(data);
}

inline void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace llamesh::test
