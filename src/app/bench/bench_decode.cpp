#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "app/bench/bench.hpp"
#include "app/bench/bench_timing.hpp"
#include "app/program/program.hpp"
#include "model/decoder.hpp"
#include "model/description/parameters.hpp"
#include "model/inference_weights.hpp"
#include "ops/cpu/vec.hpp"
#include "ops/ops.hpp"

namespace llamesh::app {
namespace {

constexpr std::int64_t prompt_tokens = 32;
constexpr std::int64_t positions = 512;

/// Returns a config with the shapes in inputs/models/smollm2-135m.yaml and llama3.2-1b.yaml.
model::ModelConfig shape(std::int64_t hidden, std::int64_t intermediate, std::int64_t layers,
                         std::int64_t heads, std::int64_t kv_heads, std::int64_t vocabulary) {
  model::ModelConfig config;
  config.hidden_size = hidden;
  config.intermediate_size = intermediate;
  config.num_hidden_layers = layers;
  config.num_attention_heads = heads;
  config.num_key_value_heads = kv_heads;
  config.vocab_size = vocabulary;
  config.tie_word_embeddings = true;
  return config.resolved();
}

/// Measures the rate in bytes/s at which all threads together read `data` once: the limit for a
/// pass over the weights. On a GPU it is the copy rate.
double measured_read_rate(const Tensor& data) {
  if (device::compute_stream().on_gpu()) return measured_memory_rate();
  using ops::cpu::Vec;
  constexpr std::int64_t block = 4096;
  const auto* from = data.as<float>();
  const auto blocks = data.numel() / block;
  volatile float sink = 0.0F;
  const auto seconds = shortest(
      [&] {
        float total = 0.0F;
#pragma omp parallel for schedule(static) reduction(+ : total)
        for (std::int64_t b = 0; b < blocks; ++b) {
          Vec sums[8] = {};
          for (std::int64_t i = 0; i < block; i += 8 * ops::cpu::vec_width)
            for (int k = 0; k < 8; ++k)
              sums[k] +=
                  ops::cpu::load(from + b * block + i + k * ops::cpu::vec_width, ops::cpu::Whole{});
          for (const Vec& sum : sums) total += ops::cpu::sum(sum);
        }
        sink = total;
      },
      1.0);
  return static_cast<double>(blocks * block * 4) / seconds;
}

/// Fills the weights with one repeated block of random values.
void fill(const model::ParameterTable& table, const model::InferenceWeights& weights, DType dtype) {
  auto& stream = device::compute_stream();
  const RandomMatrix piece(dtype, 1, 1 << 20, 0.02F);
  const Tensor values = Tensor(piece).reshape({1 << 20});
  for (std::size_t i = 0; i < table.parameters.size(); ++i) {
    const auto count = table.parameters[i].numel();
    const Tensor all = weights.values(static_cast<model::ParameterId>(i)).reshape({count});
    for (std::int64_t first = 0; first < count; first += values.numel()) {
      const auto part = std::min(values.numel(), count - first);
      ops::copy(stream, all.slice(first, part), values.slice(0, part));
    }
  }
}

void decode(const char* name, const model::ModelConfig& config, DType dtype) {
  const auto table = model::parameter_table(config);
  model::InferenceWeights weights(table, dtype);
  fill(table, weights, dtype);
  model::Decoder decoder(config, table, weights, positions, dtype);
  const std::vector<std::int32_t> prompt(prompt_tokens, 1);
  decoder.feed(prompt);
  const auto count = weights.bytes() / 4;
  const double read_rate = measured_read_rate(Tensor(
      weights.values(table.embed_tokens.weight).data(), DType::f32, {std::min(count, 1L << 28)}));
  std::vector<double> seconds;
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto since = [](auto start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const std::int32_t token = 1;
  while (decoder.position() < positions && (seconds.size() < 5 || since(begin) < 3)) {
    const auto start = Clock::now();
    decoder.feed({&token, 1});
    seconds.push_back(since(start));
  }
  std::ranges::sort(seconds);
  // The head reads a tied embedding once per token.
  const auto bytes = static_cast<double>(weights.bytes());
  const double best = seconds.front(), median = seconds[seconds.size() / 2];
  fmt::print("{:<14}{:>6}{:>9.2f}{:>10.1f}{:>10.1f}{:>10.1f}{:>10.0f} %{:>10.1f}{:>8.0f} %\n", name,
             name_of(dtype), bytes / 1e9, read_rate / 1e9, 1 / best, bytes / best / 1e9,
             100 * bytes / best / read_rate, 1 / median, 100 * bytes / median / read_rate);
}

/// Measures token-by-token generation against the rate at which weights can be read.
int bench_decode(const std::string& device) {
  use_single_device(device);
  use_faster_bf16_products();
  fmt::print("One text, token by token after a prompt of {}, {}; random weights\n\n", prompt_tokens,
             where());
  fmt::print("{:<14}{:>6}{:>9}{:>10}{:>10}{:>10}{:>12}{:>10}{:>10}\n", "shape", "type", "GB",
             "read GB/s", "tokens/s", "GB/s", "of reading", "median", "");
  for (const DType dtype : {DType::f32, DType::bf16}) {
    decode("smollm2-135m", shape(576, 1536, 30, 9, 3, 49152), dtype);
    decode("llama3.2-1b", shape(2048, 8192, 16, 32, 8, 128256), dtype);
  }
  return 0;
}

}  // namespace

void declare_bench_decode(CLI::App& bench, Run& chosen) {
  declare_on_device(bench, chosen, "decode",
                    "Compare generation with reading the weights (takes 5 GB)", bench_decode);
}

}  // namespace llamesh::app
