#include "app/commands/commands.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <numbers>
#include <optional>

#include "app/commands/model_options.hpp"
#include "app/models/loaded_model.hpp"
#include "app/models/model_mesh.hpp"
#include "app/program/program.hpp"
#include "checkpoint/store/location.hpp"
#include "comm/mpi/session.hpp"
#include "core/log.hpp"
#include "core/nan_sign.hpp"
#include "core/text.hpp"
#include "data/data_files.hpp"
#include "data/mapped_file.hpp"
#include "data/token_ids.hpp"
#include "data/validation.hpp"
#include "device/async_copy.hpp"
#include "device/buffer.hpp"
#include "model/causal_lm.hpp"
#include "train/engine/kernel_choice.hpp"
#include "train/setup/setup.hpp"

namespace llamesh::app {
namespace {

struct EvaluateArguments : ModelArguments {
  std::vector<std::string> files;               ///< also folders, patterns and @LIST
  std::optional<std::int64_t> sequence_length;  ///< empty: the run's, else 512 if it fits
  bool tokens = false;                          ///< the files hold token ids
  std::string token_dtype;  ///< uint16 or uint32: ids without llm.c's header; empty: with it
  std::optional<data::ChatTemplate> chat_template;  ///< empty: the run's, else automatic
  std::optional<data::LossOn> loss_on;              ///< empty: the run's, else assistant
  std::optional<data::Reasoning> reasoning;         ///< empty: the run's, else refuse
  std::optional<data::RecordColumns> columns;       ///< empty: the run's
  Output output = Output::text;
};

struct Sum {
  double nats = 0;
  std::int64_t tokens = 0;  ///< predicted
};

/// Splits the rows of the residual stream among a group's ranks if they are divisible.
sharding::ResidualLayout residual_of(std::int64_t sequence_length, int tensor_size) {
  using enum sharding::ResidualLayout;
  return sequence_length % tensor_size == 0 ? sequence : whole;
}

Sum evaluate_share(LoadedModel& model, const data::ValidationData& data, DType dtype,
                   std::int64_t sequence_length, const comm::Communicator& world, ModelMesh& mesh) {
  data::TokenBatch batch(1, sequence_length);
  const auto tensor = mesh.tensor_parallel(
      model.config, residual_of(sequence_length, mesh.tensor_size()), sequence_length, dtype);
  model::CausalLM llama(model.config, model.shard.table, 1, sequence_length, {}, dtype, *tensor,
                        model::Purpose::evaluate);
  device::Staging tokens, targets, document_starts;
  const auto to_device = [&](device::Staging& staging, std::vector<std::int32_t>& ids) {
    if (ids.empty()) return Tensor();
    return staging.to_device(device::compute_stream(),
                             Tensor(ids.data(), DType::i32, {1, sequence_length}));
  };
  Sum sum;
  for (std::int64_t k = 0; k < data.batches(); ++k) {
    comm::agree(world, [&] { data.read(k, batch); });  // several ranks may read a bad file
    llama.evaluate(model.weights,
                   {to_device(tokens, batch.tokens), to_device(targets, batch.targets),
                    to_device(document_starts, batch.document_starts)});
    sum.tokens += std::ranges::count_if(batch.targets, [](auto target) { return target >= 0; });
  }
  sum.nats = llama.take_loss();
  return sum;
}

data::Format format_of(const EvaluateArguments& arguments) {
  if (arguments.tokens || !arguments.token_dtype.empty()) return data::Format::tokens;
  return data::format_of(arguments.files, data::TokenDtype::from_header);
}

/// Returns the token dtype. Headerless files need --token-dtype.
data::TokenDtype token_dtype_of(const EvaluateArguments& arguments) {
  if (arguments.token_dtype == "uint16") return data::TokenDtype::uint16;
  if (arguments.token_dtype == "uint32") return data::TokenDtype::uint32;
  for (const auto& file : arguments.files)
    validate(
        data::is_token_file(data::MappedFile(file).bytes()),
        "token file '{}' begins with neither llm.c's header nor NumPy's; if it holds only ids, add "
        "--token-dtype uint16 or --token-dtype uint32",
        file);
  return data::TokenDtype::from_header;
}

/// Returns options that read the files like the model's training data, as far as possible.
data::DataOptions options_for(const EvaluateArguments& arguments, const LoadedModel& model) {
  data::DataOptions options = model.data;
  options.format = format_of(arguments);
  validate(
      options.format == data::Format::jsonl || !(arguments.chat_template || arguments.loss_on ||
                                                 arguments.reasoning || arguments.columns),
      "--chat-template, --loss-on, --reasoning and --column are for .jsonl and .json; '{}' "
      "holds no records: leave them out",
      arguments.files.front());
  options.chat_template = arguments.chat_template.value_or(options.chat_template);
  options.loss_on = arguments.loss_on.value_or(options.loss_on);
  options.reasoning = arguments.reasoning.value_or(options.reasoning);
  options.columns = arguments.columns.value_or(options.columns);
  if (data::is_text(options.format))
    options.tokenizer = tokenizer_for(model, arguments.tokenizer);
  else if (options.format == data::Format::tokens)
    options.token_dtype = token_dtype_of(arguments);
  if (options.document_mask && options.format == data::Format::tokens && options.eos_token < 0) {
    options.document_mask = false;
    spdlog::warn(
        "the model was trained with data.document_mask, but token files need data.eos_token for "
        "that, which its run does not set: documents are not separated; give text instead");
  }
  return options;
}

/// Returns the length as asked, or else the run's or 512, as far as the model has positions.
std::int64_t sequence_length_of(const EvaluateArguments& arguments, const LoadedModel& model) {
  if (!arguments.sequence_length) return model.config.within_positions(model.data.sequence_length);
  model::check_positions(model.config, *arguments.sequence_length, "lower --sequence-length");
  return *arguments.sequence_length;
}

/// Replaces folders, lists and patterns by their files.
void find_files(EvaluateArguments& arguments) {
  std::vector<std::string> files;
  for (const auto& word : arguments.files) {
    auto found = data::find_data_files(word, data::Format::automatic);
    if (!found.note.empty()) spdlog::info("{}", found.note);
    std::ranges::move(found.files, std::back_inserter(files));
  }
  arguments.files = std::move(files);
}

std::int64_t bytes_of(const std::vector<std::string>& files) {
  std::int64_t bytes = 0;
  for (const auto& file : files)
    bytes += static_cast<std::int64_t>(std::filesystem::file_size(file));
  return bytes;
}

void print_result(const EvaluateArguments& arguments, const data::DataOptions& options,
                  const data::TokenStream& stream, const Sum& sum) {
  const double loss = sum.nats / static_cast<double>(sum.tokens);
  std::optional<double> bits;
  if (options.format == data::Format::text)
    bits = sum.nats / std::numbers::ln2 / static_cast<double>(bytes_of(arguments.files));
  if (arguments.output == Output::json) {
    Json result{{"model", arguments.model},
                {"files", arguments.files},
                {"tokens", sum.tokens},
                {"document_mask", options.document_mask},
                {"loss", loss},
                {"perplexity", std::exp(loss)}};
    if (bits) result["bits_per_byte"] = *bits;
    return print_json(result);
  }
  fmt::print("{}: {} tokens predicted{}\nloss        {:.6f} nats per token\nperplexity  {:.4f}\n",
             stream.describe(), sum.tokens,
             options.document_mask ? ", each from its own document" : "", loss, std::exp(loss));
  if (bits) fmt::print("bits/byte   {:.6f}\n", *bits);
}

/// Fails after a loss that is not finite has been printed.
void check_finite(const Sum& sum, const std::string& path) {
  if (std::isfinite(sum.nats)) return;
  std::fflush(stdout);  // the error may end the job at once
  fail(ExitCode::no_progress, "the loss of {} is {}; {}", path, sum.nats,
       advice_on_nonfinite_weights(path));
}

/// Opens the stream; one rank per machine tokenizes text. Collective.
data::TokenStream open_stream(const comm::Communicator& world, const data::DataOptions& options,
                              const std::vector<std::string>& files, std::int64_t vocab_size) {
  std::vector<data::TokenizedText> tokenized;
  if (data::is_tokenized(options))
    tokenized = train::tokenize_once(world, [&] {
      const auto tokenizer = data::open_fitting_tokenizer(options.tokenizer, vocab_size);
      return std::vector{data::TokenizedText(options, files, vocab_size, *tokenizer)};
    });
  std::optional<data::TokenStream> stream;
  comm::agree(world, [&] {
    if (tokenized.empty())
      stream.emplace(options, files, vocab_size);
    else
      stream.emplace(options, files, vocab_size, tokenized.front());
  });
  return std::move(*stream);
}

/// Computes a model's mean loss, perplexity and, for text, bits per byte over files. They are split
/// into sequences like a run's validation data, with a document mask if the model's run had one.
/// Under mpirun the ranks, or groups of ranks that hold a model together, share the sequences.
int evaluate(const EvaluateArguments& asked) {
  EvaluateArguments arguments = asked;
  const comm::MpiSession session(comm::WithoutLauncher::one_rank);
  setup_logging();
  const auto& world = session.world();
  use_device(world, arguments.device);
  device::advise_on_memory(
      "the weights take half of it with --dtype bf16, or are divided among N ranks with "
      "--tensor-parallel-size N; the rest grows with --sequence-length");
  DType dtype = DType::f32;
  std::unique_ptr<LoadedModel> model;
  std::optional<data::TokenStream> stream;
  std::optional<data::ValidationData> data;
  data::DataOptions options;
  std::int64_t sequence_length = 0;
  comm::agree(world, [&] {
    constexpr std::int64_t longest = 1 << 24;  // as for data.sequence_length
    const auto length = arguments.sequence_length.value_or(1);
    validate(length >= 1 && length <= longest, "--sequence-length is {}; allowed: 1 to {}", length,
             longest);
    find_files(arguments);
    validate(!arguments.dtype.starts_with("uint"),
             "--dtype is the dtype of the weights; did you mean --token-dtype {}?",
             arguments.dtype);
    dtype = dtype_of_argument(arguments.dtype);
  });
  ModelMesh mesh(world, arguments.tensor_parallel_size);
  const auto path = comm::on_rank_0(world, [&] { return model_path(arguments.model); });
  comm::agree(world, [&] {
    model =
        std::make_unique<LoadedModel>(path, dtype, mesh.dims(), world.rank(), arguments.adapter);
    options = options_for(arguments, *model);
    sequence_length = sequence_length_of(arguments, *model);
  });
  stream.emplace(open_stream(world, options, arguments.files, model->config.vocab_size));
  sequence_length = std::min(sequence_length, stream->size() - 1);  // the rest would be padding
  comm::agree(world, [&] {
    data.emplace(
        *stream,
        data::BatchPartition{
            .sequence_length = sequence_length, .rank = mesh.group(), .ranks = mesh.groups()},
        0);
    data->check_targets();
  });
  Sum sum;
  run_or_abort([&] {
    train::set_threads(0, world);
    train::choose_bf16_products(world, dtype);
    const auto mine = evaluate_share(*model, *data, dtype, sequence_length, world, mesh);
    const auto& groups = mesh.data_group();
    sum = {without_nan_sign(groups.sum(mine.nats)), groups.sum(mine.tokens)};
  });
  comm::agree(world, [&] {  // all ranks have the same values, one reports an error
    if (world.rank() == 0) print_result(arguments, options, *stream, sum);
    check_finite(sum, path);
  });
  return 0;
}

}  // namespace

void declare_evaluate(CLI::App& parser, Run& chosen) {
  auto& command =
      add_command(parser, "evaluate", "Compute a model's loss over files (also under mpirun)",
                  {"llamesh evaluate runs/tiny inputs/text/tiny.txt --sequence-length 64",
                   "mpirun -n 4 llamesh evaluate hf:FOLDER FILE --tensor-parallel-size 2 --json"});
  auto& [to] = runs(command, chosen, evaluate);
  to.tensor_parallel_size = 1;
  add_model(command, to,
            "Ranks that share each matrix (default 1); groups of them divide the sequences");
  command
      .add_option("FILES", to.files,
                  "Text, .jsonl or .json, or token files; also folders, patterns in quotes, and "
                  "@LIST (a file with one path per line)")
      ->required();
  command.add_flag("--tokens", to.tokens,
                   "Take the files as token ids with llm.c's header, whatever their names say");
  command
      .add_option("--token-dtype", to.token_dtype,
                  "Take the files as token ids without a header: uint16 or uint32")
      ->check(CLI::IsMember({"uint16", "uint32"}));
  add_named<data::ChatTemplate>(command, "--chat-template", to.chat_template,
                                "As data.chat_template (default: the run's; auto for a folder)");
  add_named<data::LossOn>(command, "--loss-on", to.loss_on,
                          "As data.loss_on (default: the run's; assistant for a folder)");
  add_named<data::Reasoning>(command, "--reasoning", to.reasoning,
                             "As data.reasoning (default: the run's; refuse for a folder)");
  add_columns(command, to.columns, " (default: the run's)");
  command.add_option("--sequence-length", to.sequence_length,
                     "In tokens (default: the run's; for a Hugging Face folder 512, or the "
                     "model's positions if it has fewer)");
  add_json(command, to.output);
}

}  // namespace llamesh::app
