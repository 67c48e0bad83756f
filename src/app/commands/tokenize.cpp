#include "app/commands/commands.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <utility>

#include "app/program/options.hpp"
#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/terminal_line.hpp"
#include "core/text.hpp"
#include "data/data_files.hpp"
#include "data/encode_jsonl.hpp"
#include "data/mapped_file.hpp"
#include "data/megatron.hpp"
#include "data/token_file.hpp"
#include "tokenizer/tokenizer.hpp"
#include "train/terminal/progress_bar.hpp"

namespace llamesh::app {
namespace {

/// Splits text into documents; skips empty ones.
void split(std::string_view text, const std::string& separator,
           std::vector<std::string_view>& documents) {
  while (!text.empty()) {
    const std::size_t end = separator.empty() ? text.npos : text.find(separator);
    if (end != 0) documents.push_back(text.substr(0, end));
    if (end == text.npos) break;
    text.remove_prefix(end + separator.size());
  }
}

std::string_view text_of(const data::MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

/// An input file that is mapped only while it is encoded.
struct InputFile {
  std::string path;
  bool is_jsonl;
};

std::vector<InputFile> find_inputs(const TokenizeArguments& arguments) {
  std::vector<InputFile> inputs;
  const auto add = [&](const std::string& word) {
    const auto found = data::find_data_files(word, data::Format::automatic);
    if (!found.note.empty()) fmt::print(stderr, "--input: {}\n", found.note);
    for (const std::string& path : found.files) {
      const auto format = data::format_of(path, data::TokenDtype::from_header);
      validate(data::is_text(format), "'{}' already holds token ids; give text, .jsonl or .json",
               path);
      validate(format == data::Format::text || arguments.separator.empty(),
               "--document-separator is for text, but '{}' holds separate documents; leave it out",
               path);
      inputs.push_back({path, format == data::Format::jsonl});
    }
  };
  for (const std::string& word : arguments.inputs) {
    try {
      add(word);
    } catch (const Error& error) {
      fail(error.code(), "--input: {}", error.what());
    }
  }
  return inputs;
}

std::size_t total_bytes(const std::vector<InputFile>& inputs) {
  std::size_t bytes = 0;
  for (const auto& input : inputs) bytes += std::filesystem::file_size(input.path);
  return bytes;
}

/// Returns the other files of a token file: its mask, and the ids of a pair.
std::vector<std::string> companions(const std::string& output) {
  if (output == "-") return {};
  std::vector<std::string> names = {data::loss_mask_path(output)};
  if (output.ends_with(".idx")) names.push_back(data::megatron_stem(output) + ".bin");
  return names;
}

/// Returns the id that ends a document, unless it occurs before the end too.
std::optional<std::int32_t> only_end(std::span<const std::int32_t> ids) {
  const auto found = std::ranges::find(ids, ids.back());
  return found + 1 == ids.end() ? std::optional(ids.back()) : std::nullopt;
}

/// Encoder that appends the files to the output in order and shows its progress.
class Work {
 public:
  Work(const TokenizeArguments& arguments, const tokenizer::Tokenizer& tokenizer, std::size_t bytes)
      : arguments_(arguments),
        tokenizer_(tokenizer),
        threads_(arguments.threads > 0 ? arguments.threads : tokenizer::available_threads()),
        all_bytes_(bytes),
        file_(arguments.output, arguments.existing),
        output_(file_.path().string(), tokenizer.vocab_size()) {
    for (const auto& name : companions(arguments.output)) OutputFile(name, arguments.existing);
  }

  /// Adds a text file. Consecutive text files are encoded together, in batches: the system limits
  /// how many files may be mapped at once.
  void add_text(data::MappedFile file) {
    constexpr std::size_t max_files = 1024;
    const auto suffix = tokenizer_.suffix_ids();
    note_end(suffix.empty() ? std::nullopt : std::optional(suffix.back()));
    split(text_of(file), arguments_.separator, waiting_);
    mapped_.push_back(std::move(file));
    if (mapped_.size() == max_files) encode_waiting();
  }

  void add_jsonl(const data::MappedFile& file) {
    encode_waiting();
    const auto special = data::document_tokens(tokenizer_, arguments_.data_options());
    const auto take = [&](const data::EncodedDocument& document, std::string_view line,
                          const data::LineNumber& where) {
      validate(
          document.masked_ranges.empty() || !file_.is_stdout(),
          "{}: an instruction or conversation needs a loss mask next to the token file, which is "
          "not possible on standard output; name a file in --output",
          where);
      note_end(only_end(document.ids));
      ++documents_;
      summary_.add(document);
      append(document.ids, line.size(), document.masked_ranges);
      output_.end_document();
    };
    data::encode_jsonl(tokenizer_, special, text_of(file), file.path(), threads_, take);
    file.check();
  }

  void finish() {
    encode_waiting();
    output_.commit();
    file_.finish();
    show_terminal_line("");  // no bar below what follows
    const double seconds = seconds_since(start_);
    auto* const to = file_.is_stdout() ? stderr : stdout;
    fmt::print(to,
               "{}: {} tokens (uint{}, vocabulary {}) from {}, {} bytes; {:.1f} s, {:.3g} "
               "tokens/s, {:.1f} MB/s with {} threads\n",
               file_.is_stdout() ? "standard output" : arguments_.output, output_.tokens(),
               output_.bits(), tokenizer_.vocab_size(),
               counted(static_cast<std::int64_t>(documents_), "document"), bytes_, seconds,
               static_cast<double>(output_.tokens()) / seconds,
               static_cast<double>(bytes_) / 1e6 / seconds, threads_);
    if (!summary_.empty()) fmt::print(to, "of the records: {}\n", summary_.text());
    const bool is_pair = arguments_.output.ends_with(".idx");
    if (end_) fmt::print(to, "every document ends with id {} (data.eos_token)\n", *end_);
    if (!end_ && !is_pair)
      fmt::print(
          to,
          "no id occurs only at the ends of documents; for data.packing and data.document_mask "
          "write a Megatron-LM pair instead: --output NAME.idx\n");
    if (output_.mask().masks())
      fmt::print(to, "{}: which tokens are in the loss; keep it beside the tokens\n",
                 output_.mask().path());
  }

 private:
  void note_end(std::optional<std::int32_t> end) {
    end_ = std::exchange(any_file_, true) && end_ != end ? std::nullopt : end;
  }

  void encode_waiting() {
    tokenizer::encode_documents(tokenizer_, waiting_, threads_,
                                [&](auto ids, std::size_t text_bytes, auto end) {
                                  append(ids, text_bytes);
                                  if (end == tokenizer::DocumentEnd::yes) output_.end_document();
                                });
    for (const auto& file : mapped_) file.check();
    documents_ += waiting_.size();
    waiting_.clear();
    mapped_.clear();
  }

  void append(std::span<const std::int32_t> ids, std::size_t text_bytes,
              std::span<const std::int64_t> masked_ranges = {}) {
    output_.append(ids, masked_ranges);
    bytes_ += text_bytes;
    const auto step = static_cast<std::int64_t>(steps * static_cast<double>(bytes_) /
                                                static_cast<double>(all_bytes_));
    if (step == shown_) return;
    shown_ = step;
    const double seconds = seconds_since(start_);
    progress_.show(step,
                   {fmt::format("{:3} %", step), fmt::format("{} tokens", output_.tokens()),
                    fmt::format("{:.1f} MB/s", static_cast<double>(bytes_) / 1e6 / seconds)},
                   seconds);
  }

  static constexpr std::int64_t steps = 100;

  const TokenizeArguments& arguments_;
  const tokenizer::Tokenizer& tokenizer_;
  int threads_;
  std::size_t all_bytes_;
  OutputFile file_;
  data::TokenFileWriter output_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  train::ProgressBar progress_{0, steps, steps / 10};
  std::vector<data::MappedFile> mapped_;
  std::vector<std::string_view> waiting_;  ///< text documents in mapped_
  std::optional<std::int32_t> end_;        ///< id that ends every document, if there is one
  bool any_file_ = false;
  std::size_t documents_ = 0;
  data::JsonlSummary summary_;
  std::size_t bytes_ = 0;  ///< done
  std::int64_t shown_ = 0;
};

}  // namespace

data::DataOptions TokenizeArguments::data_options() const {
  data::DataOptions options;
  options.tokenizer = tokenizer;
  options.chat_template = chat_template;
  options.loss_on = loss_on;
  options.reasoning = reasoning;
  options.columns = columns;
  return options;
}

int tokenize(const TokenizeArguments& arguments) {
  validate(arguments.show > 0 || !arguments.output.empty(),
           "name the token file with --output, or print records with --show");
  const auto tokenizer = tokenizer::open_tokenizer(arguments.tokenizer);
  const auto inputs = find_inputs(arguments);
  if (arguments.show > 0) {
    std::vector<std::string> files;
    for (const auto& input : inputs) {
      validate(input.is_jsonl,
               "--show is for .jsonl and .json, but '{}' is text; leave it out of --input",
               input.path);
      files.push_back(input.path);
    }
    show_records(arguments, files);
    return 0;
  }
  Work work(arguments, *tokenizer, total_bytes(inputs));
  for (const auto& input : inputs) {
    data::MappedFile file(input.path);
    if (input.is_jsonl)
      work.add_jsonl(file);
    else
      work.add_text(std::move(file));
  }
  work.finish();
  return 0;
}

void declare_tokenize(CLI::App& parser, Run& chosen) {
  auto& command = add_command(
      parser, "tokenize", "Tokenize text and conversations into one token file",
      {"llamesh tokenize --tokenizer folder --input chats.jsonl --show 2",
       "llamesh tokenize --tokenizer tokenizer.json --input a.txt chats.jsonl --output ids.idx"});
  auto& [to] = runs(command, chosen, tokenize);
  command
      .add_option("--tokenizer", to.tokenizer,
                  "byte, a SentencePiece .model, a tokenizer.json, or a folder with one of them")
      ->required();
  command
      .add_option(
          "--input", to.inputs,
          "Text files in UTF-8, or .jsonl or .json records as for data.train; also folders, "
          "patterns in quotes, and @LIST (a file with one path per line)")
      ->required();
  auto* output =
      command.add_option("--output", to.output,
                         "The token file: NAME.bin as llm.c's, NAME.idx for a Megatron-LM pair, "
                         "which also records documents; - is standard output");
  add_force(command, to.existing);
  command.add_option("--threads", to.threads, "Default: one for each core")
      ->check(CLI::Range(1, 4096));
  command.add_option("--document-separator", to.separator,
                     "Text between documents (default: each file is one document)");
  command
      .add_option("--show", to.show,
                  "Instead of --output: print this many records of each JSON file as the model "
                  "sees them, with the tokens that count in the loss in color")
      ->check(CLI::Range(1, 1'000'000))
      ->excludes(output);
  add_named<data::ChatTemplate>(command, "--chat-template", to.chat_template,
                                "As data.chat_template");
  add_named<data::LossOn>(command, "--loss-on", to.loss_on, "As data.loss_on");
  add_named<data::Reasoning>(command, "--reasoning", to.reasoning, "As data.reasoning");
  add_columns(command, to.columns, "");
}

}  // namespace llamesh::app
