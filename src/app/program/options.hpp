#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "app/program/command.hpp"
#include "app/program/output_file.hpp"
#include "core/enum_names.hpp"
#include "core/error.hpp"
#include "core/text.hpp"
#include "data/data_options.hpp"

/// Helpers for every Declare, and options that several commands share.
namespace llamesh::app {

/// Adds a subcommand with two examples.
inline CLI::App& add_command(CLI::App& parser, const std::string& name, const std::string& help,
                             std::initializer_list<std::string> examples) {
  std::string footer = "Examples:";
  for (const auto& example : examples) footer += "\n  " + example;
  auto* command = parser.add_subcommand(name, help);
  command->footer(footer);
  return *command;
}

/// Makes `work` the chosen one if the command line names the command. Returns its arguments, one
/// per parameter, for options to write to. They live as long as the command.
template <class... Parameters>
auto& runs(CLI::App& command, Run& chosen, std::function<int(Parameters...)> work) {
  const auto arguments = std::make_shared<std::tuple<std::decay_t<Parameters>...>>();
  command.callback([=, &chosen] { chosen = [=] { return std::apply(work, *arguments); }; });
  return *arguments;
}
template <class Work>
auto& runs(CLI::App& command, Run& chosen, Work work) {
  return runs(command, chosen, std::function(work));
}

inline void add_device(CLI::App& command, std::string& device) {
  command.add_option("--device", device, "auto (the default), cpu or cuda")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
}

inline void add_json(CLI::App& command, Output& output) {
  command.add_flag_callback(
      "--json", [&output] { output = Output::json; }, "Print one JSON object (docs/json.md)");
}

/// Adds --force, for commands that write an OutputFile.
inline void add_force(CLI::App& command, Existing& existing) {
  command.add_flag_callback(
      "--force", [&existing] { existing = Existing::replace; }, "Replace an existing file");
}

/// Adds an option whose words are those of a key in input files.
template <class E, class Value>
void add_named(CLI::App& command, const char* option, Value& value, const char* help) {
  std::vector<std::string> words;
  for (const auto& [word, named] : enum_names(E{}).words) words.emplace_back(word);
  command
      .add_option_function<std::string>(
          option, [&value](const std::string& word) { value = *value_of_name<E>(word); }, help)
      ->check(CLI::IsMember(words));
}

/// Parses words such as "prompt=question". Throws a user error for another form or key.
inline data::RecordColumns record_columns(const std::vector<std::string>& words) {
  data::RecordColumns columns;
  for (const auto& word : words) {
    const auto key = word.substr(0, word.find('='));
    const auto* const found =
        std::ranges::find(data::record_columns, key, &data::RecordColumn::name);
    validate(
        found != std::end(data::record_columns) && word.size() > key.size() + 1,
        "--column {}: expected KEY=NAME, with a key of data.columns: text, instruction, input, "
        "output, prompt, completion or messages",
        excerpt(word));
    columns.*found->member = word.substr(key.size() + 1);
  }
  return columns;
}

/// Adds --column for `columns`, which may be optional. `otherwise`: what holds without it.
template <class Columns>
void add_columns(CLI::App& command, Columns& columns, const std::string& otherwise) {
  command
      .add_option_function<std::vector<std::string>>(
          "--column", [&columns](const auto& words) { columns = record_columns(words); },
          "KEY=NAME, as data.columns.KEY=NAME; may be repeated" + otherwise)
      ->allow_extra_args(false);
}

}  // namespace llamesh::app
