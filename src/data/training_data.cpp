#include "data/training_data.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "data/chat_template.hpp"

namespace llamesh::data {
namespace {

std::vector<std::string> all_files(const std::vector<SourceOptions>& sources) {
  std::vector<std::string> files;
  for (const auto& source : sources)
    files.insert(files.end(), source.files.begin(), source.files.end());
  return files;
}

std::string count_of(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::vector<SourceOptions> sources_of(const DataOptions& options) {
  auto sources = options.training_sources();
  validate(!sources.empty(), "data.train names no file; give at least one");
  return sources;
}

}  // namespace

std::vector<TokenizedText> TrainingData::tokenize(const DataOptions& options,
                                                  std::int64_t vocab_size) {
  const auto sources = sources_of(options);
  std::vector<TokenizedText> tokenized;
  if (!is_tokenized(options)) return tokenized;
  check_text_size(options, all_files(sources));
  const auto tokenizer = open_fitting_tokenizer(options.tokenizer, vocab_size);
  for (const auto& source : sources)
    tokenized.emplace_back(options, source.files, vocab_size, *tokenizer);
  return tokenized;
}

TrainingData::TrainingData(const DataOptions& options, std::int64_t vocab_size)
    : TrainingData(options, vocab_size, tokenize(options, vocab_size)) {}

TrainingData::TrainingData(const DataOptions& options, std::int64_t vocab_size,
                           std::span<const TokenizedText> tokenized)
    : order_(options.order),
      packing_(options.packs_documents() ? options.packing : Packing::concatenate),
      format_(options.format),
      chat_template_(options.chat_template),
      loss_on_(options.loss_on),
      sequence_length_(options.sequence_length) {
  const auto sources = sources_of(options);
  expects(tokenized.size() == (is_tokenized(options) ? sources.size() : 0), "{} of {} tokenized",
          tokenized.size(), sources.size());
  if (is_text(options.format)) {
    tokenizer_ = options.tokenizer;
    vocabulary_hash_ = tokenized.empty() ? tokenizer::open_tokenizer("byte")->vocabulary_hash()
                                         : tokenized.front().vocabulary_hash();
  }
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const auto& source = sources[i];
    const auto& stream =
        tokenized.empty() ? streams_.emplace_back(options, source.files, vocab_size)
                          : streams_.emplace_back(options, source.files, vocab_size, tokenized[i]);
    add_share(stream, source.weight);
  }
  sampler(0);  // checks the weights
}

void TrainingData::add_share(const TokenStream& stream, double weight) {
  if (packing_ == Packing::concatenate) {
    const std::int64_t sequences = whole_sequences(stream.size(), sequence_length_);
    validate(sequences >= 1,
             "{} has {} tokens, but one sequence needs {} (data.sequence_length + 1); set "
             "data.sequence_length to {} or less",
             stream.describe(), stream.size(), sequence_length_ + 1, stream.size() - 1);
    shares_.push_back({sequences, weight});
    return;
  }
  const auto& packed = packed_.emplace_back(stream, packing_, sequence_length_);
  validate(packed.size() >= 1,
           "{} has {} documents with at most 1 token each; a prediction needs 2", stream.describe(),
           packed.documents());
  shares_.push_back({packed.size(), weight});
}

void TrainingData::read(SourceSequence at, TokenBatch& batch, std::int64_t row) const {
  if (packed_.empty())
    batch.set_row(row, streams_[at.source], at.sequence);
  else
    batch.set_row(row, streams_[at.source], packed_[at.source].pieces(at.sequence), at.source);
}

std::string TrainingData::describe_packing(std::size_t source) const {
  if (packed_.empty()) return "";
  const PackedSequences& packed = packed_[source];
  if (streams_[source].has_pairs())
    return fmt::format(" from {}, {:.2f} % padding", count_of(packed.documents(), "pair"),
                       100 * packed.padding());
  return fmt::format(" from {} ({} longer than a sequence{}), {:.2f} % padding",
                     count_of(packed.documents(), "document"), packed.split_documents(),
                     packed.cut_documents() == 0
                         ? ""
                         : fmt::format(", {} cut before their answer", packed.cut_documents()),
                     100 * packed.padding());
}

/// Counts the JSONL records whose first target is in a later sequence than their first token. Their
/// masks are in memory; those of token files would have to be read from start to end.
std::string TrainingData::describe_cuts(std::size_t source) const {
  if (format_ != Format::jsonl || !packed_.empty()) return "";
  const TokenStream& stream = streams_[source];
  std::int64_t documents = 0, cut = 0;
  for (std::int64_t begin = 0, end = 0; begin < stream.size(); begin = end) {
    end = stream.next_document(begin + 1, stream.size());
    const std::int64_t target = stream.next_target(begin + 1, end);
    ++documents;
    if (target < end && (target - 1) / sequence_length_ != begin / sequence_length_) ++cut;
  }
  if (cut == 0) return "";
  return fmt::format(", {} of {} cut before their answer", cut, count_of(documents, "document"));
}

bool TrainingData::has_target(SourceSequence at) const {
  const TokenStream& stream = streams_[at.source];
  const auto has = [&](std::int64_t begin, std::int64_t tokens) {
    return stream.next_target(begin + 1, begin + tokens) < begin + tokens;
  };
  if (packed_.empty()) return has(at.sequence * sequence_length_, sequence_length_ + 1);
  return std::ranges::any_of(packed_[at.source].pieces(at.sequence),
                             [&](const auto& piece) { return has(piece.begin, piece.tokens); });
}

/// Looks at a part of the sequences: to look at all would read every byte of a loss mask, one per
/// token, at each launch. A share is within 3 % of the whole source's.
double TrainingData::share_without_targets(std::size_t source) const {
  const std::int64_t sequences = shares_[source].sequences;
  const std::int64_t looked_at = std::min<std::int64_t>(sequences, 1024);
  std::int64_t without = 0;
  for (std::int64_t i = 0; i < looked_at; ++i)
    if (!has_target({source, i * sequences / looked_at})) ++without;
  return static_cast<double>(without) / static_cast<double>(looked_at);
}

void TrainingData::check_targets() const {
  for (std::size_t source = 0; source < streams_.size(); ++source) {
    if (streams_[source].files() == 0 || share_without_targets(source) < 1) return;
    for (std::int64_t i = 0; i < shares_[source].sequences; ++i)
      if (has_target({source, i})) return;
  }
  const auto more = streams_.size() - 1;
  fail(ExitCode::bad_input,
       "no token of the training data {}{} counts in the loss: {}check their loss mask, and which "
       "turns their records leave in the loss",
       streams_.front().describe(),
       more == 0 ? "" : fmt::format(" and {}", count_of(std::ssize(streams_) - 1, "other source")),
       packed_.empty() ? "the last tokens, too few for a sequence, are not used: lower "
                         "data.sequence_length or set data.packing=best_fit; or "
                       : "");
}

std::vector<std::string> TrainingData::warnings() const {
  std::vector<std::string> lines;
  for (std::size_t source = 0; source < streams_.size(); ++source) {
    const double share = share_without_targets(source);
    if (share > 0.5)
      lines.push_back(fmt::format(
          "data: {:.0f} % of the sequences of {} have no token that counts in the loss; are the "
          "prompts longer than data.sequence_length ({})?",
          100 * share, streams_[source].describe(), sequence_length_));
  }
  return lines;
}

std::vector<std::string> TrainingData::describe() const {
  const Sampler counted = sampler(0);
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    const auto& [sequences, weight] = shares_[i];
    if (streams_[i].files() == 0) {  // random tokens: an endless stream has no token count to show
      lines.push_back(fmt::format("data: {}", streams_[i].describe()));
      continue;
    }
    lines.push_back(fmt::format("data: {}: {}, {} of {}", streams_[i].describe(),
                                count_of(streams_[i].size(), "token"),
                                count_of(sequences, "sequence"), sequence_length_));
    lines.back() += describe_packing(i) + describe_cuts(i);
    if (const auto masked = streams_[i].masked_files(); masked > 0)
      lines.back() += streams_[i].files() == 1 ? ", with a loss mask"
                                               : fmt::format(", {} of {} files with a loss mask",
                                                             masked, streams_[i].files());
    if (streams_.size() > 1 || weight != 1)
      lines.back() += fmt::format(", weight {}: {} of the {} of an epoch ({:.2f} %)", weight,
                                  counted.quota(i), counted.epoch_length(),
                                  100.0 * static_cast<double>(counted.quota(i)) /
                                      static_cast<double>(counted.epoch_length()));
  }
  return lines;
}

void TrainingData::add_chat_options(DataOrder& order) const {
  if (format_ != Format::jsonl) return;
  DataOptions options;
  options.tokenizer = tokenizer_;
  options.chat_template = chat_template_;
  order.chat_template = name_with_hash(options);
  if (loss_on_ == LossOn::last_assistant) order.loss_on = "last_assistant";
  if (loss_on_ == LossOn::all) order.loss_on = "all";
}

Fingerprint TrainingData::fingerprint(std::int64_t global_batch) const {
  DataOrder order{.sequence_length = sequence_length_,
                  .global_batch = global_batch,
                  .order = order_ == Order::shuffled ? "shuffled" : "sequential",
                  .weights = {}};
  for (const Share& share : shares_) order.weights.push_back(share.weight);
  add_chat_options(order);
  if (!packed_.empty()) {
    order.packing = packing_ == Packing::best_fit ? "best_fit" : "none";
    RunningHash documents;
    for (const auto& packed : packed_) {
      const std::uint64_t hash = packed.hash();
      documents.add(&hash, sizeof(hash));
    }
    order.documents = documents.value();
  }
  Fingerprint fingerprint{tokenizer_, vocabulary_hash_, {}, std::move(order)};
  std::size_t files = 0;
  for (const auto& stream : streams_) files += stream.files();
  for (const auto& stream : streams_)
    fingerprint.sources.push_back(stream.file_fingerprints(piece_bytes_for(files)));
  return fingerprint;
}

}  // namespace llamesh::data
