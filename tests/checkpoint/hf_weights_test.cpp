#include "checkpoint/models/hf_model.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "checkpoint/fixture.hpp"
#include "checkpoint/format/format.hpp"
#include "checkpoint/format/state_reader.hpp"
#include "checkpoint/models/hf_export.hpp"
#include "core/file.hpp"
#include "hostile_files.hpp"
#include "model/description/config_json.hpp"
#include "model/golden.hpp"
#include "source_file.hpp"

namespace llamesh::checkpoint {
namespace {

namespace fs = std::filesystem;

const fs::path golden_folder = test::source_file("tests/model/golden/hf");

/// Counts this rank's model numbers that differ from `expected` (parameter name, element).
template <class Expected>
std::int64_t wrong(const test::Job& job, const Expected& expected) {
  std::int64_t count = 0;
  const auto state = job.state();
  const auto shards = state.only(model_group).groups.front().shards;
  for (std::size_t u = 0; u < job.layout.units().size(); ++u)
    for (const auto& piece : job.layout.pieces(u, test::world().rank()))
      for (std::int64_t i = 0; i < piece.count; ++i) {
        const float seen = shards[u].span<float>()[static_cast<std::size_t>(piece.offset + i)];
        if (seen != expected(job.table[piece.parameter].name, piece.begin + i)) ++count;
      }
  return test::world().sum(count);
}

/// Folders written by transformers hold the golden files' numbers: on every mesh, read by every
/// rank or by one.
TEST(HfWeights, GoldenFolders) {
  std::vector<std::string> names{"gqa_8_2", "tied_6_3", "llama3_rope", "tied_4_2",
                                 "qwen2",   "mistral",  "qwen3",       "olmo2",
                                 "gpt2",    "gpt2_hub", "mixtral",     "qwen3_moe"};
  names.insert(names.end(), std::begin(test::llama_variants), std::end(test::llama_variants));
  for (const auto& name : names) {
    const auto golden = test::load_golden(name == "gpt2_hub" ? "gpt2" : name);
    const auto config = model::read_config_json(golden_folder / name);
    EXPECT_EQ(model::to_config_json(config),
              model::to_config_json(test::config_of(golden.config())));
    const auto table = parameter_table(config);
    const auto expected = test::parameters_of(golden, "weights/", config, table);
    for (const auto by : {ReadBy::each_rank, ReadBy::rank0})
      for (const auto wrap : {sharding::Wrap::layer, sharding::Wrap::none}) {
        test::Job job(test::world().size() % 2 == 0 ? 2 : 1, wrap, config);
        job.fill(1);
        std::ranges::reverse(job.groups);  // groups are found by name
        load_hf_weights(golden_folder / name, config, job.state(), test::world(), by);
        EXPECT_EQ(wrong(job,
                        [&](const std::string& parameter, std::int64_t element) {
                          const auto at = std::ranges::find(table.parameters, parameter,
                                                            &model::Parameter::name);
                          return expected[static_cast<std::size_t>(at - table.parameters.begin())]
                                         [static_cast<std::size_t>(element)];
                        }),
                  0)
            << name;
      }
  }
}

TEST(HfWeights, AnImportHasTheMomentsThatTheCallerNames) {
  const auto golden = test::load_golden("gqa_8_2");
  const test::Folder folder;
  import_hf(golden_folder / "gqa_8_2", folder.path() / "imported", {"momentum"}, "a: 1\n", "test",
            test::world());
  test::Job job(1, sharding::Wrap::layer, model::read_config_json(golden_folder / "gqa_8_2"));
  job.groups.pop_back();
  job.groups.back().path = moment_group("momentum");
  std::ranges::reverse(job.groups);
  job.fill(1);
  read_state(folder.path() / "imported", job.state(), test::world(), OtherGroups::refuse);
  const auto value = [&](const std::string& parameter, std::int64_t element) {
    return golden["weights/" + parameter].values[static_cast<std::size_t>(element)];
  };
  EXPECT_EQ(wrong(job, value), 0);
  for (std::size_t u = 0; u < job.layout.units().size(); ++u)
    for (const auto& piece : job.layout.pieces(u, test::world().rank()))
      for (const float x : job.groups[0].shards[u].slice(piece.offset, piece.count).span<float>())
        ASSERT_EQ(x, 0);
}

/// Returns element i of a tensor in the folders below: exact in every type.
float number(const std::string& name, std::int64_t i) {
  return static_cast<float>((static_cast<std::int64_t>(name_hash(name) % 251U) + 7 * i) % 251 -
                            125);
}

std::string data_of(const std::string& name, std::int64_t numel, StoredType type) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < numel; ++i) values.push_back(number(name, i));
  std::string bytes(static_cast<std::size_t>(numel * size_of(type)), '\0');
  from_floats(type, values, reinterpret_cast<std::uint8_t*>(bytes.data()));
  return bytes;
}

/// The small model's folder as a list of tensors that a test may change before writing it.
struct Folder {
  explicit Folder(StoredType stored, bool is_tied = false)
      : type(stored), config(test::small_config(24, is_tied)) {
    for (const auto& p : model::parameter_table(config).parameters) tensors[p.name] = p.shape;
  }
  /// Writes one file, or (`files` > 1) several with an index.
  void write(const fs::path& folder, int files) const {
    if (test::world().rank() == 0) {
      fs::remove_all(folder);
      fs::create_directories(folder);
      test::write_file(folder / "config.json", model::to_config_json(config));
      std::string map;
      for (int f = 0; f < files; ++f) write_file(folder, f, files, map);
      if (files > 1)
        test::write_file(folder / "model.safetensors.index.json",
                         R"({"weight_map": {)" + map.substr(1) + "}}");
    }
    test::world().barrier();
  }
  void write_file(const fs::path& folder, int file, int files, std::string& map) const {
    const auto name = files == 1 ? "model.safetensors" : fmt::format("part-{}.safetensors", file);
    // A header with odd length puts the numbers at odd addresses.
    std::string header = "{\"__metadata__\":{}", data;
    int i = 0;
    for (const auto& [tensor, shape] : tensors) {
      if (i++ % files != file) continue;
      std::int64_t numel = 1;
      for (const auto size : shape) numel *= size;
      const auto begin = data.size();
      const auto source = tensor == "lm_head.weight" && config.tie_word_embeddings && !other_head
                              ? "model.embed_tokens.weight"
                              : tensor;
      data += data_of(source, numel, type);
      header += fmt::format(",\"{}\":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                            tensor, name_of(type), fmt::join(shape, ","), begin, data.size());
      map += fmt::format(",\"{}\":\"{}\"", tensor, name);
    }
    header += header.size() % 2 == 0 ? "}  " : "} ";
    if (header.size() % 2 == 0) header += ' ';
    test::write_file(folder / name, test::safetensors_bytes(header, data));
  }

  StoredType type;
  model::ModelConfig config;
  bool other_head = false;
  std::map<std::string, std::vector<std::int64_t>> tensors;
};

/// Returns the error from loading the folder on this rank; every rank must have the same exit code.
std::string load(const test::Job& job, const fs::path& folder, ReadBy by = ReadBy::each_rank) {
  std::string what = "no error";
  auto code = ExitCode::done;
  try {
    load_hf_weights(folder, test::small_config(), job.state(), test::world(), by);
  } catch (const Error& error) {
    what = error.what();
    code = error.code();
    EXPECT_EQ(code, ExitCode::bad_input) << what;
  }
  EXPECT_EQ(test::world().max(static_cast<int>(code)), test::world().min(static_cast<int>(code)));
  return test::world().broadcast(what);
}

TEST(HfWeights, EveryTypeAndNumberOfFiles) {
  const test::Folder here;
  for (const auto type : {StoredType::f32, StoredType::bf16, StoredType::f16})
    for (const int files : {1, 3}) {
      const Folder folder(type);
      folder.write(here.path() / "m", files);
      for (const auto by : {ReadBy::each_rank, ReadBy::rank0}) {
        const test::Job job(1, sharding::Wrap::layer, folder.config);
        job.fill(1);
        EXPECT_EQ(load(job, here.path() / "m", by), "no error");
        EXPECT_EQ(wrong(job, number), 0) << name_of(type) << ", " << files << " files";
      }
    }
}

TEST(HfWeights, WhatTheModelDoesNotHave) {
  const test::Folder here;
  const auto path = here.path() / "m";
  const auto result = [&](const Folder& folder, int files = 1, ReadBy by = ReadBy::each_rank) {
    folder.write(path, files);
    return load(test::Job(1, sharding::Wrap::layer, folder.config), path, by);
  };
  const Folder good(StoredType::bf16);
  for (const int files : {1, 2}) {
    auto folder = good;
    folder.tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {6};
    EXPECT_EQ(result(folder, files), "no error");
    folder = good;
    folder.tensors.erase("model.norm.weight");
    EXPECT_NE(result(folder, files).find("has no tensor 'model.norm.weight'"), std::string::npos);
    folder = good;
    folder.tensors["model.layers.1.self_attn.q_proj.bias"] = {24};
    EXPECT_NE(result(folder, files).find("has 'model.layers.1.self_attn.q_proj.bias', which"),
              std::string::npos);
    folder = good;
    std::ranges::reverse(folder.tensors["model.layers.1.mlp.up_proj.weight"]);
    EXPECT_NE(result(folder, files).find("has shape (24, 40) where the model has (40, 24)"),
              std::string::npos);
  }
  Folder tied(StoredType::f32, true);
  tied.tensors["lm_head.weight"] = tied.tensors["model.embed_tokens.weight"];
  EXPECT_EQ(result(tied), "no error");
  tied.other_head = true;
  for (const auto by : {ReadBy::each_rank, ReadBy::rank0})
    EXPECT_NE(result(tied, 1, by).find("lm_head.weight is not model.embed_tokens.weight"),
              std::string::npos);
}

TEST(HfWeights, BadFolders) {
  const test::Folder here;
  const auto path = here.path() / "m";
  const test::Job job(1);
  const Folder good(StoredType::f32);
  const auto result = [&](const std::function<void()>& spoil) {
    good.write(path, 2);
    if (test::world().rank() == 0) spoil();
    test::world().barrier();
    auto error = load(job, path);
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    return error;
  };
  const auto index = path / "model.safetensors.index.json";
  EXPECT_EQ(result([] {}), "no error");
  EXPECT_NE(load(job, here.path() / "none").find("is not a folder"), std::string::npos);
  EXPECT_NE(result([&] { fs::remove(index); }).find("has neither model.safetensors nor"),
            std::string::npos);
  EXPECT_NE(
      result([&] { fs::remove(path / "part-1.safetensors"); }).find("cannot be opened: No such"),
      std::string::npos);
  EXPECT_NE(result([&] {
              fs::remove(path / "part-1.safetensors");
              fs::create_directory(path / "part-1.safetensors");
            }).find("is a folder"),
            std::string::npos);
  EXPECT_NE(result([&] { test::write_file(path / "part-1.safetensors", ""); }).find("is empty"),
            std::string::npos);
  EXPECT_NE(result([&] {
              fs::copy_file(path / "part-0.safetensors", path / "part-1.safetensors",
                            fs::copy_options::overwrite_existing);
            }).find("which the index does not place there"),
            std::string::npos);
  for (const std::string name :
       {"../part-0.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".x.safetensors",
        "part-0.safetensors\\u0000", "part-0.bin", "\\n.safetensors", ""})
    EXPECT_NE(result([&] {
                test::write_file(index, R"({"weight_map": {"t": ")" + name + "\"}}");
              }).find("which is not the plain name"),
              std::string::npos)
        << name;
  for (const auto& [text, message] : std::vector<std::pair<std::string, std::string>>{
           {"{}", "has no weight_map"},
           {R"({"weight_map": []})", "has no weight_map"},
           {R"({"weight_map": {}})", "weight_map is empty"},
           {R"({"weight_map": {"a": 1}})", "not the plain name"},
           {R"({"weight_map": {"a": "x.safetensors", "a": "x.safetensors"}})", "appears twice"},
           {R"({"weight_map": )" + std::string(1000, '['), "deeper than 32"},
           {"", "not JSON"}})
    EXPECT_NE(result([&, &text = text] { test::write_file(index, text); }).find(message),
              std::string::npos)
        << text.substr(0, 100);
}

/// Returns each tensor's dtype, shape and bytes, by name.
auto contents(const fs::path& folder) {
  const HfWeights weights(folder);
  std::map<std::string, std::tuple<std::string, Shape, std::vector<std::uint8_t>>> contents;
  for (const auto& name : weights.names()) {
    const auto& tensor = weights.tensor(name);
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(tensor.bytes));
    weights.read_bytes(name, 0, bytes);
    contents[name] = {tensor.dtype, tensor.shape, std::move(bytes)};
  }
  return contents;
}

/// An export has every tensor in a folder whose model takes images, to the bit and by the names
/// that the folder has; a language model alone looks like one that came without images.
TEST(HfWeights, OtherPartsAreKeptOrLeftOut) {
  const auto& world = test::world();
  for (const std::string name : {"gemma3", "ministral3", "qwen2", "qwen3", "gqa_8_2"}) {
    const test::Folder folder;
    const auto source = golden_folder / (name + "_images");
    const auto checkpoint = folder.path() / "checkpoint";
    import_hf(source, checkpoint, {}, "a: 1\n", "1", world);
    export_hf(
        checkpoint, folder.path() / "whole",
        {.max_shard_bytes = 20'000, .source = source, .keeps_other_parts = true, .tokenizer = {}},
        world);
    EXPECT_TRUE(contents(folder.path() / "whole") == contents(source)) << name;
    export_hf(checkpoint, folder.path() / "text", {.source = source, .tokenizer = {}}, world);
    EXPECT_TRUE(contents(folder.path() / "text") == contents(golden_folder / name)) << name;
    const auto config = model::read_config_json(golden_folder / name);
    for (const auto* exported : {"whole", "text"})
      EXPECT_EQ(model::to_config_json(model::read_config_json(folder.path() / exported)),
                model::to_config_json(config))
          << name;
  }
}

/// Writes a folder with the matrix w (5, 7) in F8_E4M3, whose element i has the bits i, and scales
/// 1/4, 2/4, ... of the shape.
void write_float8(const fs::path& folder, const Shape& shape, const std::string& config) {
  std::vector<StoredTensor> tensors{{"w.activation_scale", "F32", {}},
                                    {"w.weight", "F8_E4M3", {5, 7}},
                                    {"w.weight_scale_inv", "F32", shape}};
  std::string file = safetensors_header(tensors);
  file.append(4, '\0');
  for (int i = 0; i < 35; ++i) file.push_back(static_cast<char>(i * 7));
  for (std::int64_t i = 0; i < tensors.back().numel(); ++i) {
    const float scale = static_cast<float>(i + 1) / 4;
    file.append(reinterpret_cast<const char*>(&scale), sizeof(scale));
  }
  write_durably(folder / "model.safetensors", file);
  write_durably(folder / "config.json", config);
}

/// Returns a number's value in F8_E4M3, by the definition.
float float8(int bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::nanf("");
  const float value = exponent == 0
                          ? std::ldexp(static_cast<float>(mantissa), -9)
                          : std::ldexp(8.0F + static_cast<float>(mantissa), exponent - 10);
  return bits < 128 ? value : -value;
}

/// Writes a folder with the tensor w (2, 64) in MXFP4, in two rows of two blocks.
void write_mxfp4(const fs::path& folder, const Shape& blocks, const Shape& scales) {
  std::vector<StoredTensor> tensors{{"w_blocks", "U8", blocks}, {"w_scales", "U8", scales}};
  std::string file = safetensors_header(tensors);
  for (std::int64_t i = 0; i < tensors[0].numel(); ++i) file.push_back(static_cast<char>(i * 37));
  for (std::int64_t i = 0; i < tensors[1].numel(); ++i)
    file.push_back(
        static_cast<char>(std::array{0, 127, 254, 255}[static_cast<std::size_t>(i) % 4]));
  write_durably(folder / "model.safetensors", file);
}

/// Returns the number with these 4 bits, by the definition of E2M1.
float float4(int bits) {
  const int exponent = bits >> 1 & 3, mantissa = bits & 1;
  const float value = exponent == 0 ? static_cast<float>(mantissa) / 2
                                    : std::ldexp(2.0F + static_cast<float>(mantissa), exponent - 2);
  return bits < 8 ? value : -value;
}

TEST(HfWeights, Mxfp4IsOneTensor) {
  if (test::world().size() > 1) return;
  const test::Folder folder;
  write_mxfp4(folder.path(), {2, 2, 16}, {2, 2});
  const HfWeights weights(folder.path());
  EXPECT_EQ(weights.names(), std::vector<std::string>{"w"});
  EXPECT_TRUE(weights.has("w") && weights.is_mxfp4("w"));
  EXPECT_EQ(weights.tensor("w").shape, (Shape{2, 64}));
  EXPECT_EQ(weights.tensor("w").dtype, "BF16");
  for (const std::int64_t begin : {0, 1, 31, 33, 64, 100}) {
    std::vector<float> values(static_cast<std::size_t>(std::min<std::int64_t>(70, 128 - begin)));
    weights.read("w", begin, values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto at = static_cast<int>(begin) + static_cast<int>(i), byte = at / 2 * 37 % 256;
      const float number = float4(at % 2 == 0 ? byte & 15 : byte >> 4);
      const int exponent = std::array{-127, 0, 127, 0}[static_cast<std::size_t>(at / 32)];
      if (at / 32 == 3)
        EXPECT_TRUE(std::isnan(values[i])) << at;
      else
        EXPECT_EQ(values[i], std::ldexp(number, exponent)) << at;
    }
  }
  const auto refused = [&](const Shape& blocks, const Shape& scales, const std::string& text) {
    write_mxfp4(folder.path(), blocks, scales);
    try {
      HfWeights(folder.path()).tensor("w");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_input);
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  refused({2, 2, 16}, {4}, "'w_scales' has shape (4), but 'w_blocks' has (2, 2) blocks");
  refused({2, 2, 8}, {2, 2}, "'w_blocks' is U8 (2, 2, 8), and its scales U8; MXFP4 has bytes, 16");
}

TEST(HfWeights, Float8TakesItsScales) {
  if (test::world().size() > 1) return;
  const test::Folder folder;
  const auto read = [&] {
    const HfWeights weights(folder.path());
    EXPECT_TRUE(weights.is_scale("w.weight_scale_inv") && weights.is_scale("w.activation_scale"));
    EXPECT_FALSE(weights.is_scale("w.weight"));
    std::vector<float> whole(35);
    weights.read("w.weight", 0, whole);
    for (std::int64_t begin = 0; begin < 35; begin += 4) {  // parts of rows, and several
      std::vector<float> part(static_cast<std::size_t>(std::min<std::int64_t>(9, 35 - begin)));
      weights.read("w.weight", begin, part);
      for (std::size_t i = 0; i < part.size(); ++i) {
        const auto expected = whole[static_cast<std::size_t>(begin) + i];
        EXPECT_TRUE(part[i] == expected || (std::isnan(part[i]) && std::isnan(expected)));
      }
    }
    return whole;
  };
  const auto expect_scales = [&](auto scale_of) {
    const auto values = read();
    for (int i = 0; i < 35; ++i) {
      const float expected = float8(i * 7 % 256) * scale_of(i / 7, i % 7);
      const auto value = values[static_cast<std::size_t>(i)];
      EXPECT_TRUE(value == expected || (std::isnan(value) && std::isnan(expected))) << i;
    }
  };
  const std::string by_4 = R"({"quantization_config": {"weight_block_size": [2, 4]}})";
  write_float8(folder.path(), {3, 2}, by_4);
  expect_scales([](int row, int col) {
    const int block = row / 2 * 2 + col / 4;
    return static_cast<float>(block + 1) / 4;
  });
  write_float8(folder.path(), {}, by_4);
  expect_scales([](int, int) { return 0.25F; });
  write_float8(folder.path(), {5, 1}, "{}");
  expect_scales([](int row, int) { return static_cast<float>(row + 1) / 4; });
  const auto refused = [&](const Shape& shape, const std::string& config, const std::string& text) {
    write_float8(folder.path(), shape, config);
    try {
      read();
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_input);
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  refused(
      {2, 3}, by_4,
      "'w.weight_scale_inv' has shape (2, 3), but 'w.weight' (5, 7) has (3, 2) blocks of (2, 4)");
  refused({4}, by_4, "has 1 dims; it needs two");
  refused({3, 2}, R"({"quantization_config": {"weight_block_size": [0, 4]}})",
          "weight_block_size: expected two sizes, got [0,4]");
}

}  // namespace
}  // namespace llamesh::checkpoint
