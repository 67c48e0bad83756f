#include "app/evaluate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <optional>

#include "app/loaded_model.hpp"
#include "app/session.hpp"
#include "comm/session.hpp"
#include "core/log.hpp"
#include "data/validation.hpp"
#include "device/buffer.hpp"
#include "device/staging.hpp"
#include "model/llama.hpp"
#include "train/bf16_products.hpp"
#include "train/threads.hpp"

namespace llamesh::app {
namespace {

struct Sum {
  double nats = 0;
  std::int64_t tokens = 0;  ///< predicted
};

Sum evaluate_share(LoadedModel& model, const data::ValidationData& data, DType dtype,
                   std::int64_t sequence_length, const comm::Communicator& world) {
  data::Batch batch(1, sequence_length);
  model::Llama llama(model.config, model.table, 1, sequence_length, {}, dtype);
  device::Staging tokens, targets, document_starts;
  const auto reachable = [&](device::Staging& staging, std::vector<std::int32_t>& ids) {
    if (ids.empty()) return Tensor();
    return staging.reachable(device::compute_stream(),
                             Tensor(ids.data(), DType::i32, {1, sequence_length}));
  };
  Sum sum;
  for (std::int64_t k = 0; k < data.batches(); ++k) {
    comm::agree(world, [&] { data.read(k, batch); });  // a bad file is met by several ranks
    sum.nats += llama.evaluate(model.weights,
                               {reachable(tokens, batch.tokens), reachable(targets, batch.targets),
                                reachable(document_starts, batch.document_starts)});
    sum.tokens += std::ranges::count_if(batch.targets, [](auto target) { return target >= 0; });
  }
  return sum;
}

data::Format format_of(const EvaluateArguments& arguments) {
  if (arguments.tokens) return data::Format::tokens;
  const auto is_jsonl = [](const std::string& file) { return file.ends_with(".jsonl"); };
  const auto count = std::ranges::count_if(arguments.files, is_jsonl);
  validate(count == 0 || static_cast<std::size_t>(count) == arguments.files.size(),
           "text and .jsonl files cannot be evaluated together; give them apart");
  return count == 0 ? data::Format::text : data::Format::jsonl;
}

/// The files are read as the model was trained to read, as far as that can be.
data::DataOptions options_for(const EvaluateArguments& arguments, const LoadedModel& model) {
  data::DataOptions options = model.data;
  options.format = format_of(arguments);
  if (!arguments.tokenizer.empty()) options.tokenizer = arguments.tokenizer;
  if (options.document_mask && arguments.tokens && options.eos_token < 0) {
    options.document_mask = false;
    spdlog::warn(
        "the model was trained with data.document_mask, but its run's data.eos_token does not say "
        "where the documents of token files end: they are not parted");
  }
  return options;
}

std::int64_t bytes_of(const std::vector<std::string>& files) {
  std::int64_t bytes = 0;
  for (const auto& file : files)
    bytes += static_cast<std::int64_t>(std::filesystem::file_size(file));
  return bytes;
}

}  // namespace

int evaluate(const EvaluateArguments& arguments) {
  const comm::MpiSession session;
  setup_logging();
  const auto& world = session.world();
  use_device(world, arguments.device);
  device::advise_on_memory(
      "the weights, all on each rank, take half of it with --dtype bf16; the rest grows with "
      "--sequence-length");
  DType dtype = DType::f32;
  std::unique_ptr<LoadedModel> model;
  std::optional<data::TokenStream> stream;
  std::optional<data::ValidationData> data;
  data::DataOptions options;
  comm::agree(world, [&] {
    constexpr std::int64_t longest = 1 << 24;  // as data.sequence_length
    validate(arguments.sequence_length >= 1 && arguments.sequence_length <= longest,
             "--sequence-length is {}; give 1 to {}", arguments.sequence_length, longest);
    dtype = dtype_of_argument(arguments.dtype);
    model = std::make_unique<LoadedModel>(arguments.model, dtype);
    options = options_for(arguments, *model);
    stream.emplace(options, arguments.files, model->config.vocab_size);
    data.emplace(*stream,
                 data::Dealing{.sequence_length = arguments.sequence_length,
                               .rank = world.rank(),
                               .ranks = world.size()},
                 0);
  });
  run_or_abort([&] {
    train::set_threads(0, world);
    train::choose_bf16_products(world, dtype);
    const auto mine = evaluate_share(*model, *data, dtype, arguments.sequence_length, world);
    const double nats = world.sum(mine.nats);
    const auto tokens = static_cast<double>(world.sum(mine.tokens));
    if (world.rank() != 0) return;
    fmt::print(
        "{}: {:.0f} tokens predicted{}\nloss        {:.6f} nats a token\nperplexity  {:.4f}\n",
        stream->describe(), tokens, options.document_mask ? ", each from its own document" : "",
        nats / tokens, std::exp(nats / tokens));
    if (options.format == data::Format::text)
      fmt::print("bits/byte   {:.6f}\n",
                 nats / std::numbers::ln2 / static_cast<double>(bytes_of(arguments.files)));
  });
  return 0;
}

}  // namespace llamesh::app
