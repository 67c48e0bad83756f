#include "core/terminal_line.hpp"

#include <cstdio>
#include <mutex>
#include <string>

namespace llamesh {
namespace {

struct Line {
  std::mutex mutex;
  std::string text;

  void clear() const {
    if (!text.empty()) std::fputs("\r\033[K", stderr);
  }
  /// A closed terminal is not an error.
  void draw() const {
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
  }
};

Line& line() {
  static auto* const of_this_process = new Line();  // never destroyed: threads log until the end
  return *of_this_process;
}

}  // namespace

void show_terminal_line(std::string_view text) {
  const std::lock_guard lock(line().mutex);
  line().clear();
  line().text = text;
  line().draw();
}

AboveTerminalLine::AboveTerminalLine() {
  line().mutex.lock();
  line().clear();
}

AboveTerminalLine::~AboveTerminalLine() {
  line().draw();
  line().mutex.unlock();
}

}  // namespace llamesh
