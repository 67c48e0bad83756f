#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace llamesh::app {

/// A failure for which a node was blamed.
struct NodeFailure {
  std::string host;
  std::string reason;  ///< one line
  std::string time;    ///< UTC
  std::string job;     ///< Slurm's id

  bool operator==(const NodeFailure&) const = default;
};

/// Returns true if both names are one host: a cluster may use its name with and without the domain.
bool is_same_host(std::string_view a, std::string_view b);

/// A run's record of the nodes that failed it, in <run folder>/bad_nodes.json. A node that failed
/// once is used again only if too few others are left; one that failed twice is not used until
/// somebody removes it from the file.
class BadNodes {
 public:
  /// Reads the file; nothing failed if there is none. A file that cannot be understood is ignored
  /// with a warning, and replaced by the next blame().
  explicit BadNodes(const std::filesystem::path& run_folder);

  /// Adds a failure and writes the file. If that fails, warns.
  void blame(std::string_view host, std::string_view reason);

  const std::vector<NodeFailure>& failures() const { return failures_; }
  bool has_failed(std::string_view host) const { return count(host) > 0; }
  bool is_out(std::string_view host) const { return count(host) >= 2; }
  /// Returns up to `max_nodes` of `usable`, in their order: those that never failed come before
  /// those that failed once, and none is out.
  std::vector<std::string> choose(const std::vector<std::string>& usable,
                                  std::size_t max_nodes) const;

 private:
  std::ptrdiff_t count(std::string_view host) const;

  std::filesystem::path file_;
  std::vector<NodeFailure> failures_;
};

}  // namespace llamesh::app
