#pragma once

#include <spdlog/spdlog.h>

#include <filesystem>

namespace llamesh {

/// Sets up spdlog for this process: a timestamp, and the rank where it is not 0. Rank 0 logs from
/// info on, the others from warning on, so that a message common to all ranks appears once.
void setup_logging();

/// Also appends the log to a file (rank 0 does this for runs/<name>/log.txt). A file whose first
/// line is not that of a log of llamesh is quarantined, with a warning, and a new one begun.
void log_to_file(const std::filesystem::path& path);

/// Also appends this rank's log, from info on, to a file of its own: what a rank other than 0 says
/// appears elsewhere only from warning on.
void log_rank_to_file(const std::filesystem::path& path);

/// Appends a line to such a file, which another process may have open.
void append_to_log(const std::filesystem::path& path, const std::string& line);

/// A line for that file alone: what the terminal shows in another form. Nothing without a file.
void log_to_file_only(const std::string& line);

}  // namespace llamesh
