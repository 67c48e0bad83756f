#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace llamesh::checkpoint {

/// The exclusive right to write into a folder, for the object's lifetime: a file `.lease` that
/// names the holder, locked on this host (the system releases the lock when the process ends) and
/// touched every 5 s for other hosts. Throws exit 78, naming the holder, while another job holds
/// it. A lease left behind by a dead job is taken over: at once from this host or the same job,
/// else after 12 s without a touch.
class Lease {
 public:
  explicit Lease(const std::filesystem::path& folder);
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

 private:
  struct Heartbeat;
  std::unique_ptr<Heartbeat> heartbeat_;
};

/// The holder of a lease, as its file says: words of printable characters. Empty: none.
struct LeaseHolder {
  std::string job, host, process;

  bool operator==(const LeaseHolder&) const = default;
};
std::string to_text(const LeaseHolder& holder);
LeaseHolder parse_lease(std::string_view text);

/// Names this run of the program: "<job id>.<restarts>" under Slurm, else "<host>-<pid>.0".
std::string job_name();

}  // namespace llamesh::checkpoint
