#include "checkpoint/models/peft_folder.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "checkpoint/models/safetensors.hpp"
#include "model/description/lora.hpp"
#include "support.hpp"
#include "temporary_folder.hpp"

namespace llamesh::checkpoint {
namespace {

model::ModelConfig small_config() {
  model::ModelConfig config;
  config.num_hidden_layers = 2;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_attention_heads = 2;
  config.lora = model::Lora{.rank = 2, .targets = {"q_proj"}};
  return config.resolved();
}

/// Writes the table's adapters in F64, with element i of every tensor 1/3 + i.
void write_in_f64(const model::ParameterTable& table, const test::TemporaryFolder& folder) {
  std::vector<StoredTensor> tensors;
  for (const auto& p : table.parameters)
    if (model::is_adapter(p)) tensors.push_back({"base_model.model." + p.name, "F64", p.shape});
  std::string file = safetensors_header(tensors);
  for (const auto& tensor : tensors)
    for (std::int64_t i = 0; i < tensor.numel(); ++i) {
      const double value = 1.0 / 3 + static_cast<double>(i);
      file.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
  folder.write("adapter_model.safetensors", file);
}

TEST(PeftFolder, InF64IsRoundedToFp32) {
  const test::TemporaryFolder folder;
  const auto config = small_config();
  const auto table = model::parameter_table(config);
  write_in_f64(table, folder);
  const PeftFolder adapters(folder.path(), config, table);
  for (std::size_t p = 0; p < table.parameters.size(); ++p) {
    if (!model::is_adapter(table.parameters[p])) continue;
    const auto whole = Box::whole(table.parameters[p].shape);
    std::vector<float> values(static_cast<std::size_t>(whole.numel()));
    adapters.read(static_cast<model::ParameterId>(p), {whole, 0, whole.numel()}, values);
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], static_cast<float>(1.0 / 3 + static_cast<double>(i)));
  }
}

TEST(PeftFolder, APickledFileIsRefusedWithAdvice) {
  const test::TemporaryFolder folder;
  folder.write("adapter_model.bin", "");
  const auto config = small_config();
  const auto error =
      test::error_of([&] { PeftFolder(folder.path(), config, model::parameter_table(config)); });
  EXPECT_NE(error.find("adapter_model.bin only, which is not read; save the adapters again"),
            std::string::npos)
      << error;
}

}  // namespace
}  // namespace llamesh::checkpoint
