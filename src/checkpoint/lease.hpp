#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace llamesh::checkpoint {

/// The sole right to write into a folder, for as long as it lives: a file `.lease` that says who
/// holds it, locked on this host (the lock goes with the process, however that ends) and touched
/// every 5 s for other hosts. Throws exit 78, naming the holder, while another job holds it. A
/// lease left behind by a dead job is taken over: at once from this host or the same job, else
/// after 12 s without a touch.
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

/// Who holds a lease, as its file says: words of printable characters. Empty: nobody.
struct LeaseHolder {
  std::string job, host, process;

  bool operator==(const LeaseHolder&) const = default;
};
std::string to_text(const LeaseHolder& holder);
LeaseHolder parse_lease(std::string_view text);

/// Names this run of the program: "<job id>.<restarts>" under Slurm, else "<host>-<pid>.0".
std::string job_name();

}  // namespace llamesh::checkpoint
