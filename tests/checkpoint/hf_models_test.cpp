#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>

#include "comm/mesh/topology.hpp"
#include "config/inputs.hpp"
#include "model/description/parameters.hpp"
#include "source_file.hpp"
#include "train/setup/setup.hpp"

// Checks known model shapes against their published parameter counts, and every run input that
// ships.

namespace llamesh {
namespace {

const std::filesystem::path inputs_folder = test::source_file("inputs");

/// Those of Llama as published, the others as transformers counts them on its meta device.
TEST(HfModels, HaveTheKnownNumbersOfParameters) {
  const std::map<std::string, std::int64_t> known = {
      {"smollm2-135m", 134'515'008},
      {"tinyllama-1.1b", 1'100'048'384},
      {"llama3.2-1b", 1'235'814'400},
      {"llama3.2-3b", 3'212'749'824},
      {"llama2-7b", 6'738'415'616},
      {"llama3-8b", 8'030'261'248},
      {"llama3.1-8b", 8'030'261'248},
      {"llama2-13b", 13'015'864'320},
      {"llama2-70b", 68'976'648'192},
      {"llama3-70b", 70'553'706'496},
      {"llama3.1-405b", 405'853'388'800},
      {"qwen2.5-0.5b", 494'032'768},
      {"qwen2.5-1.5b", 1'543'714'304},
      {"qwen2.5-7b", 7'615'616'512},
      {"qwen2.5-14b", 14'770'033'664},
      {"qwen2.5-32b", 32'763'876'352},
      {"qwen2.5-72b", 72'706'203'648},
      {"qwen3-0.6b", 596'049'920},
      {"qwen3-1.7b", 1'720'574'976},
      {"qwen3-4b", 4'022'468'096},
      {"qwen3-8b", 8'190'735'360},
      {"qwen3-14b", 14'768'307'200},
      {"qwen3-32b", 32'762'123'264},
      {"mistral-7b-v0.1", 7'241'732'096},
      {"mistral-7b-v0.3", 7'248'023'552},
      {"olmo2-1b", 1'484'916'736},
      {"olmo2-7b", 7'298'617'344},
      {"olmo2-13b", 13'716'198'400},
      {"olmo2-32b", 32'234'279'936},
      {"gemma2-2b", 2'614'341'888},
      {"gemma2-9b", 9'241'705'984},
      {"gemma2-27b", 27'227'128'320},
      {"gemma3-1b", 999'885'952},
      {"gemma3-4b", 3'880'263'168},
      {"gemma3-12b", 11'766'034'176},
      {"gemma3-27b", 27'009'346'304},
      {"phi4-mini", 3'836'021'760},
      {"ministral3-8b", 8'489'553'920},
      {"command-r7b", 8'028'033'024},
      {"deepseek-v2-lite", 15'706'484'224},
      {"deepseek-v3", 671'026'419'200},
      {"kimi-k2", 1'026'408'232'448},
      {"glm4.7-flash", 29'943'393'920},
      // With 19 x 256 biases, which its own code calls buffers.
      {"ling-mini-2.0", 16'255'638'528 + 4864},
      {"mimo-7b", 7'622'619'136},
      {"internlm2.5-7b", 7'737'708'544},
      {"internlm3-8b", 8'804'241'408},
      {"gpt-oss-20b", 20'914'757'184},
      {"gpt-oss-120b", 116'829'156'672},
      {"olmo3-7b", 7'298'011'136},
      {"olmo3-32b", 32'233'522'176},
      {"smollm3-3b", 3'075'098'624},
      {"granite3-8b", 8'170'848'256},
      {"apertus-8b", 8'053'338'176},
      {"apertus-70b", 70'599'864'480},
      {"olmoe-1b-7b", 6'919'161'856},
      {"qwen2-57b-a14b", 57'408'658'944},
      // With 45 x 128 biases, which it calls buffers.
      {"glm4.5-air", 106'852'245'504 + 5760},
      {"mixtral-8x7b", 46'702'792'704},
      {"mixtral-8x22b", 140'620'634'112},
      {"qwen3-30b-a3b", 30'532'122'624},
      {"qwen3-235b-a22b", 235'093'634'560},
      {"gpt2", 124'439'808},
      {"gpt2-medium", 354'823'168},
      {"gpt2-large", 774'030'080},
      {"gpt2-xl", 1'557'611'200},
      {"gpt-nano", 4'958'736},
      {"gpt-micro", 13'790'208},
      {"gpt-mini", 22'164'864},
      {"gopher-44m", 77'207'552},
      {"gpt3-175b", 175'215'501'312},
      {"gpt3-1t", 1'009'288'038'400}};
  for (const auto& [name, numel] : known) {
    const auto inputs = config::parse_inputs(
        "model: {file: models/" + name + ".yaml}\ndata: {train: x}\n", inputs_folder / "f.yaml");
    EXPECT_EQ(model::parameter_table(inputs.model).numel(), numel) << name;
  }
}

/// Published figures: Mistral AI's papers and release notes for Mixtral, the model cards of OLMoE,
/// Qwen 2 and Qwen 3 (which give 3.35 as 3.3).
TEST(HfModels, TokensTakeTheKnownNumberOfExpertParameters) {
  struct Known {
    const char* name;
    std::int64_t active;
    double total_billions, active_billions;
  };
  for (const auto& known : {Known{"mixtral-8x7b", 12'879'925'248, 46.7, 12.9},
                            Known{"mixtral-8x22b", 39'152'031'744, 141, 39},
                            Known{"olmoe-1b-7b", 1'282'017'280, 6.9, 1.3},
                            Known{"qwen2-57b-a14b", 14'249'270'784, 57, 14},
                            Known{"qwen3-30b-a3b", 3'353'032'704, 30.5, 3.3},
                            Known{"qwen3-235b-a22b", 22'190'763'520, 235, 22}}) {
    const auto inputs = config::parse_inputs(
        "model: {file: models/" + std::string(known.name) + ".yaml}\ndata: {train: x}\n",
        inputs_folder / "f.yaml");
    const auto table = model::parameter_table(inputs.model);
    EXPECT_EQ(table.active_numel(), known.active) << known.name;
    const auto near = [&](std::int64_t count, double billions) {
      const double half_a_digit = billions == std::round(billions) ? 0.55 : 0.055;
      EXPECT_NEAR(static_cast<double>(count) / 1e9, billions, half_a_digit) << known.name;
    };
    near(table.numel(), known.total_billions);
    near(table.active_numel(), known.active_billions);
  }
}

TEST(HfModels, EveryRunInputIsGood) {
  int files = 0;
  for (const auto& folder : {inputs_folder, inputs_folder / "clusters"})
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() != ".yaml") continue;
      const auto stem = entry.path().stem().string();
      std::vector<std::string> overrides;
      if (stem == "finetune-lora" || stem == "preferences")  // users name their base model
        overrides = {"model.file=" + (inputs_folder / "models/llama-tiny.yaml").string()};
      const auto inputs = config::load_inputs(entry.path(), overrides);
      // A run is named after its file, so that two inputs' runs never share a folder.
      EXPECT_EQ(inputs.run.name, stem) << entry.path();
      // A cluster input's name ends with nodes x ranks, or with its tokens per sequence: then it is
      // for 8 nodes.
      if (folder.filename() == "clusters") {
        int nodes = 8, ranks = 8;
        const auto size = stem.substr(stem.rfind('-') + 1);
        const bool is_size = std::sscanf(size.c_str(), "%dx%d", &nodes, &ranks) == 2;
        EXPECT_TRUE(is_size || size == "128k") << stem;
        if (!is_size) nodes = 8;
        EXPECT_NO_THROW(train::plan_setup(inputs, comm::planned_topology(nodes * ranks, ranks, 0)))
            << stem;
      }
      ++files;
    }
  EXPECT_GE(files, 20);
}

}  // namespace
}  // namespace llamesh
