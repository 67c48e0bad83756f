#include "app/command_line/command_line.hpp"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "support.hpp"

namespace llamesh::app {
namespace {

/// Returns the commands without subcommands.
std::vector<const CLI::App*> leaves(const CLI::App* of) {
  const auto below = of->get_subcommands([](const CLI::App*) { return true; });
  if (below.empty()) return {of};
  std::vector<const CLI::App*> all;
  for (const auto* command : below) std::ranges::copy(leaves(command), std::back_inserter(all));
  return all;
}

/// Returns the part after "llamesh" in an example; quotes keep words together.
std::string arguments_of(const std::string& example) {
  const std::string program = "llamesh ";
  const auto at = example.find(program);
  EXPECT_NE(at, std::string::npos) << example;
  return example.substr(at + program.size());
}

TEST(CommandLine, EachCommandHasExamplesThatItTakes) {
  CommandLine all;
  EXPECT_GE(leaves(&all.parser()).size(), 14U);
  for (const auto* command : leaves(&all.parser())) {
    std::istringstream footer(command->get_footer());
    std::string line;
    std::getline(footer, line);
    EXPECT_EQ(line, "Examples:") << command->get_name();
    int examples = 0;
    while (std::getline(footer, line)) {
      ++examples;
      CommandLine one;
      EXPECT_NO_THROW(one.parser().parse(arguments_of(line))) << line;
      EXPECT_TRUE(one.command()) << line;
    }
    EXPECT_GE(examples, 2) << command->get_name();
  }
}

std::string problem(const std::vector<std::string>& arguments) {
  CommandLine line;
  try {
    line.parser().parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    return line.problem(error, arguments);
  }
  return "";
}

TEST(CommandLine, StorageThatNoMachineHasIsRefused) {
  for (const char* rate : {"0", "-1", "nan", "inf", "1e308", "1e-308"})
    EXPECT_NE(problem({"plan", "a.yaml", "--ranks", "2", "--storage", rate}).find("--storage"),
              std::string::npos)
        << rate;
  EXPECT_EQ(problem({"plan", "a.yaml", "--ranks", "2", "--storage", "0.5"}), "");
}

TEST(CommandLine, LongWordsAreQuotedInPart) {
  const std::string longest(100'000, 'x');
  const auto shown = std::string(120, 'x') + "...";
  EXPECT_EQ(problem({longest}), "there is no command '" + shown + "'; see llamesh --help");
  const auto not_a_number = problem({"plan", "a.yaml", "--ranks", longest});
  EXPECT_NE(not_a_number.find(shown), std::string::npos) << not_a_number;
  EXPECT_LT(not_a_number.size(), 300U);
}

TEST(CommandLine, HelpFitsInto100Columns) {
  CommandLine line;
  std::string all = line.help({});
  for (const auto* command : leaves(&line.parser()))
    all += command->get_parent() == &line.parser()
               ? line.help({command->get_name()})
               : line.help({command->get_parent()->get_name(), command->get_name()});
  std::istringstream lines(all);
  for (std::string text; std::getline(lines, text);) EXPECT_LE(text.size(), 100U) << text;
  EXPECT_NE(all.find("\n                              which also records documents"), all.npos)
      << all;
}

TEST(CommandLine, HelpIsThatOfTheCommand) {
  const CommandLine line;
  EXPECT_NE(line.help({}).find("Usage: llamesh [OPTIONS] [SUBCOMMAND]"), std::string::npos);
  EXPECT_NE(line.help({"bench", "gemm"}).find("Usage: llamesh bench gemm [OPTIONS]"),
            std::string::npos);
  EXPECT_EQ(test::error_of([&] { static_cast<void>(line.help({"trian"})); }),
            "there is no command 'trian'; did you mean 'train'?; see llamesh --help");
}

TEST(CommandLine, AMisspeltCommandNamesTheNearest) {
  EXPECT_EQ(problem({"trian", "a.yaml"}),
            "there is no command 'trian'; did you mean 'train'?; see llamesh --help");
  EXPECT_EQ(problem({"bench", "gem"}),
            "there is no command 'gem'; did you mean 'gemm'?; see llamesh bench --help");
  EXPECT_EQ(problem({"frobnicate"}), "there is no command 'frobnicate'; see llamesh --help");
  EXPECT_NE(problem({"train", "--fast", "a.yaml"}).find("--fast"), std::string::npos);
  EXPECT_TRUE(problem({"evaluate", "--fast"}).ends_with("; see llamesh evaluate --help"));
  EXPECT_NE(problem({"train", "a.yaml", "--ranks-per-node", "2"}).find("--ranks"),
            std::string::npos);
}

}  // namespace
}  // namespace llamesh::app
