#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace llamesh::checkpoint {

/// Exclusive write access to a folder for the object's lifetime. A `.lease` file names the holder,
/// is locked on this host (the system releases the lock when the process ends), and is touched
/// every 5 s for other hosts. While another job holds it, the constructor throws exit 78 and names
/// the holder. It takes over a dead job's lease: at once from this host or the same job, else after
/// 12 s without a touch. Warns within 5 s if the folder is removed or renamed.
class Lease {
 public:
  explicit Lease(const std::filesystem::path& folder);
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  /// Throws an I/O failure unless the folder is still at its path: a write would make another one.
  void check_in_place() const;

 private:
  struct Heartbeat;
  std::unique_ptr<Heartbeat> heartbeat_;
};

/// A lease's holder, from its file: printable words. Empty: none.
struct LeaseHolder {
  std::string job, host, process;

  bool operator==(const LeaseHolder&) const = default;
};
std::string to_text(const LeaseHolder& holder);
LeaseHolder parse_lease(std::string_view text);

}  // namespace llamesh::checkpoint
