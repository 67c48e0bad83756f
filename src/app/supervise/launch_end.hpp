#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace llamesh::app {

/// End of a launch, read from the run folder.
struct LaunchEnd {
  enum class Kind {
    not_started,  ///< ended before it wrote state.json: nothing is known
    unfit,        ///< a host cannot serve the run
    elsewhere,    ///< llamesh ran well, but not in this run folder
    asked,        ///< done, or asked to stop: by a signal, the walltime, a halt file
    failed        ///< a rank reported a failure, or all ranks were killed
  };
  Kind kind = Kind::not_started;
  int code = 0;                         ///< exit code, srun's if state.json has none
  std::int64_t step = 0;                ///< step in which it failed
  std::vector<std::string> hosts = {};  ///< hosts to blame
  std::string reason = {};              ///< one line

  bool operator==(const LaunchEnd&) const = default;
};

/// The files that say how a launch ended, as they were before it.
class LaunchRecord {
 public:
  explicit LaunchRecord(std::filesystem::path run_folder);

  /// Returns true if the launch has written state.json.
  bool has_started() const;
  /// Returns true if state.json says that the launch has ended: soon its processes have, too.
  bool has_ended() const;
  /// Judges the launch, whose launcher ended with `launcher_code`.
  LaunchEnd end(int launcher_code) const;
  /// Returns the failure of the launch before this one, if this one has found it in the flight
  /// records that killed ranks leave behind.
  std::optional<LaunchEnd> earlier_failure() const;

 private:
  std::filesystem::path folder_;
  std::string state_;    ///< text of state.json, empty: none
  std::string failure_;  ///< text of failure.json, empty: none
};

}  // namespace llamesh::app
