#include "app/command_line/help_formatter.hpp"

#include <cstddef>
#include <sstream>
#include <utility>

namespace llamesh::app {
namespace {

constexpr std::size_t max_columns = 100;

/// Breaks a line after spaces and commas. The lines that follow begin with `indent`.
std::string wrapped(std::string line, const std::string& indent) {
  std::string lines;
  while (line.size() > max_columns) {
    const auto end =
        line.find_last_of(" ,", line[max_columns] == ' ' ? max_columns : max_columns - 1);
    if (end == line.npos || end < indent.size()) break;
    lines += line.substr(0, line[end] == ' ' ? end : end + 1) + '\n';
    line.replace(0, end + 1, indent);
  }
  return lines + line + '\n';
}

}  // namespace

std::string HelpFormatter::make_help(const CLI::App* command, std::string name,
                                     CLI::AppFormatMode mode) const {
  std::istringstream text(CLI::Formatter::make_help(command, std::move(name), mode));
  std::string help;
  for (std::string line; std::getline(text, line);)
    help += wrapped(line, std::string(line.starts_with(' ') ? get_column_width() : 0, ' '));
  return help;
}

}  // namespace llamesh::app
