#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "comm/mesh/topology.hpp"
#include "config/inputs.hpp"
#include "model/parameters.hpp"
#include "train/run/setup.hpp"

// Checks known model shapes against their published parameter counts, and every run input that
// ships.

namespace llamesh {
namespace {

const auto inputs_folder =
    std::filesystem::path(__FILE__).parent_path().parent_path().parent_path() / "inputs";

TEST(HfModels, HaveTheKnownNumbersOfParameters) {
  const std::map<std::string, std::int64_t> known = {
      {"smollm2-135m", 134'515'008},  {"tinyllama-1.1b", 1'100'048'384},
      {"llama3.2-1b", 1'235'814'400}, {"llama3.2-3b", 3'212'749'824},
      {"llama2-7b", 6'738'415'616},   {"llama3-8b", 8'030'261'248},
      {"llama2-13b", 13'015'864'320}, {"llama2-70b", 68'976'648'192},
      {"llama3-70b", 70'553'706'496}, {"llama3.1-405b", 405'853'388'800}};
  for (const auto& [name, numel] : known) {
    const auto inputs = config::parse_inputs(
        "model: {file: models/" + name + ".yaml}\ndata: {train: x}\n", inputs_folder / "f.yaml");
    EXPECT_EQ(model::parameter_table(inputs.model).numel(), numel) << name;
  }
}

TEST(HfModels, EveryRunInputIsGood) {
  int files = 0;
  for (const auto& folder : {inputs_folder, inputs_folder / "clusters"})
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() != ".yaml") continue;
      const auto inputs = config::load_inputs(entry.path());
      // A run is named after its file, so that two inputs' runs never share a folder.
      EXPECT_EQ(inputs.run.name, entry.path().stem()) << entry.path();
      // A cluster input's name ends with nodes x 8 ranks.
      const auto stem = entry.path().stem().string();
      if (folder.filename() == "clusters") {
        const auto ranks = 8 * std::stoi(stem.substr(stem.rfind('-') + 1));
        EXPECT_NO_THROW(train::plan_setup(inputs, comm::planned_topology(ranks, 8, 0))) << stem;
        EXPECT_TRUE(stem.ends_with("x8")) << stem;
      }
      ++files;
    }
  EXPECT_GE(files, 13);
}

}  // namespace
}  // namespace llamesh
