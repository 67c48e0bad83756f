#include "data/encode_jsonl.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>
#include <thread>

#include "core/error.hpp"
#include "core/text.hpp"
#include "data/chat_template.hpp"
#include "data/jinja_template.hpp"
#include "data/pair_records.hpp"

namespace llamesh::data {
namespace {

/// A record in progress.
struct Job {
  std::string_view record;
  LineNumber where;
  std::vector<EncodedDocument> documents;
  std::exception_ptr error;
};

/// Returns the next records, about this many bytes; none at the end. If the file is broken the last
/// one is an error, which is thrown in its turn.
std::vector<Job> take_records(JsonRecords& records, std::size_t bytes) {
  std::vector<Job> jobs;
  std::size_t taken = 0;
  try {
    for (std::string_view record; taken < bytes && records.next(record); taken += record.size())
      jobs.push_back({record, records.where(), {}, {}});
  } catch (...) {
    jobs.push_back({{}, records.where(), {}, std::current_exception()});
  }
  return jobs;
}

/// Returns the record's document, or a pair's two.
std::vector<Document> documents_of(const Job& job, const ConversationOptions& options) {
  if (!options.pairs) return {parse_jsonl(job.record, job.where, options)};
  auto pair = parse_pair(job.record, job.where, options);
  return {std::move(pair[0]), std::move(pair[1])};
}

bool is_token(const TextSegment& segment) {
  return segment.kind != SegmentKind::text && segment.kind != SegmentKind::content;
}

/// Returns the id of a segment that is one special token.
std::int32_t token_of(const tokenizer::Tokenizer& tokenizer, const DocumentTokens& special,
                      const TextSegment& segment, const LineNumber& where) {
  std::optional<std::int32_t> id;
  std::string name = "BOS";
  if (segment.kind == SegmentKind::bos) {
    id = tokenizer.bos();
  } else if (segment.kind == SegmentKind::eos) {
    name = "EOS";
    id = tokenizer.eos();
  } else {
    name = fmt::format("'{}'", segment.text);
    id = tokenizer.special_token(segment.text);
  }
  validate(id.has_value(),
           "{}: the chat template {} needs the special token {}, which the tokenizer lacks; set "
           "data.chat_template to another one",
           where, name_of(special.conversations.chat_template), name);
  return *id;
}

void encode_text(const tokenizer::Tokenizer& tokenizer, const DocumentTokens& special,
                 const TextSegment& segment, tokenizer::Chunk place, std::vector<std::int32_t>& ids,
                 const LineNumber& where) {
  validate(!special.byte_zero || segment.text.find('\0') == std::string::npos,
           "{}: contains byte 0, with which the byte tokenizer ends documents; remove it", where);
  tokenizer.encode(segment.text, place, ids,
                   segment.kind == SegmentKind::text ? tokenizer::SpecialTokens::recognized
                                                     : tokenizer::SpecialTokens::text);
}

/// Returns true if the last thing in a text is a special token, which was recognized there.
bool ends_with_token(const tokenizer::Tokenizer& tokenizer, const TextSegment& segment) {
  constexpr std::size_t longest = 64;  // bytes
  if (segment.kind != SegmentKind::text) return false;
  const std::string_view text = segment.text;
  for (std::size_t bytes = 1; bytes <= std::min(text.size(), longest); ++bytes)
    if (tokenizer.special_token(text.substr(text.size() - bytes))) return true;
  return false;
}

/// Adds a masked range, or extends the last one.
void mask(std::vector<std::int64_t>& ranges, std::int64_t begin, std::int64_t end) {
  if (!ranges.empty() && ranges.back() == begin)
    ranges.back() = end;
  else
    ranges.insert(ranges.end(), {begin, end});
}

}  // namespace

DocumentTokens document_tokens(const tokenizer::Tokenizer& tokenizer, const DataOptions& options) {
  DocumentTokens special{tokenizer.prefix_ids(), tokenizer.suffix_ids(), 0,
                         options.tokenizer == "byte", conversation_options(options)};
  if (special.byte_zero) special.suffix_ids = {0};
  if (auto text = jinja_template_of(options))
    special.conversations.jinja =
        std::make_shared<const JinjaTemplate>(std::move(*text), tokenizer);
  validate(
      !special.suffix_ids.empty(),
      "the tokenizer '{}' has no end-of-text token, which JSONL documents need; set eos_token in "
      "the tokenizer_config.json of its folder",
      options.tokenizer);
  special.eos = tokenizer.eos().value_or(special.suffix_ids.back());
  return special;
}

EncodedDocument encode(const tokenizer::Tokenizer& tokenizer, const DocumentTokens& special,
                       const Document& document, const LineNumber& where) {
  EncodedDocument encoded{.ids = {}, .masked_ranges = {}, .form = document.form};
  auto& ids = encoded.ids;
  if (!document.has_special_tokens) ids = special.prefix_ids;
  std::int64_t begin = 0;
  auto place = tokenizer::Chunk::first;
  for (const TextSegment& segment : document.segments) {
    const bool is_last = &segment == &document.segments.back();
    if (is_token(segment)) {
      ids.push_back(token_of(tokenizer, special, segment, where));
      place = tokenizer::Chunk::after_token;
    } else {
      encode_text(tokenizer, special, segment, place, ids, where);
      place = ends_with_token(tokenizer, segment) ? tokenizer::Chunk::after_token
                                                  : tokenizer::Chunk::continuation;
    }
    if (is_last && document.is_prompt) break;
    if (is_last && !document.has_special_tokens) {
      ids.insert(ids.end(), special.suffix_ids.begin(), special.suffix_ids.end());
    } else if (segment.eos_follows) {
      ids.push_back(special.eos);
      place = tokenizer::Chunk::after_token;
    }
    if (!segment.in_loss) mask(encoded.masked_ranges, begin, std::ssize(ids));
    begin = std::ssize(ids);
  }
  return encoded;
}

void JsonlSummary::add(const EncodedDocument& document) {
  if (documents_++ == 0) first_form_ = document.form;
  tokens_ += std::ssize(document.ids);
  const auto& edges = document.masked_ranges;
  for (std::size_t i = 0; i < edges.size(); i += 2) masked_ += edges[i + 1] - edges[i];
}

std::string JsonlSummary::text() const {
  return fmt::format("{}, the first is {}; {} of {} tokens are in the loss",
                     pairs_ ? counted(documents_ / 2, "pair") : counted(documents_, "document"),
                     first_form_, tokens_ - masked_, tokens_);
}

void encode_jsonl(const tokenizer::Tokenizer& tokenizer, const DocumentTokens& special,
                  std::string_view text, const std::string& path, int threads,
                  const DocumentSink& sink) {
  expects(threads >= 1, "{} threads", threads);
  constexpr std::size_t bytes_of_thread = 4 << 20;
  JsonRecords records(text, path);
  for (;;) {
    auto jobs = take_records(records, bytes_of_thread * static_cast<std::size_t>(threads));
    if (jobs.empty()) return;
    std::atomic<std::size_t> next = 0;
    const auto work = [&] {
      for (std::size_t i = next++; i < jobs.size(); i = next++) {
        Job& job = jobs[i];
        if (job.error) continue;
        try {
          for (const Document& document : documents_of(job, special.conversations))
            job.documents.push_back(encode(tokenizer, special, document, job.where));
        } catch (...) {
          job.error = std::current_exception();
        }
      }
    };
    {
      std::vector<std::jthread> others;
      const std::size_t helpers = std::min(static_cast<std::size_t>(threads), jobs.size()) - 1;
      for (std::size_t i = 0; i < helpers; ++i) others.emplace_back(work);
      work();
    }
    for (const Job& job : jobs) {
      if (job.error) std::rethrow_exception(job.error);
      for (const auto& document : job.documents) sink(document, job.record, job.where);
    }
  }
}

}  // namespace llamesh::data
