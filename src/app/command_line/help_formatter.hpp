#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace llamesh::app {

/// CLI11's help in lines of at most 100 columns.
class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* command, std::string name,
                        CLI::AppFormatMode mode) const override;
};

}  // namespace llamesh::app
