#pragma once

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <sstream>
#include <string>

namespace llamesh::test {

/// Scope in which this process logs to memory.
class CapturedLog {
 public:
  CapturedLog() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(lines_)));
    spdlog::default_logger()->set_pattern("%v");
  }
  ~CapturedLog() { spdlog::set_default_logger(before_); }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  std::string text() const { return lines_.str(); }
  bool has(const std::string& words) const { return text().find(words) != std::string::npos; }

 private:
  std::ostringstream lines_;
  std::shared_ptr<spdlog::logger> before_;
};

}  // namespace llamesh::test
