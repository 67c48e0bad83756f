#include "data/encode_jsonl.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

#include "core/error.hpp"

namespace llamesh::data {
namespace {

/// A record in progress.
struct Job {
  std::string_view record;
  LineNumber where;
  EncodedDocument document;
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

}  // namespace

DocumentTokens document_tokens(const tokenizer::Tokenizer& tokenizer, const std::string& name) {
  DocumentTokens special{tokenizer.prefix_ids(), tokenizer.suffix_ids(), 0, name == "byte"};
  if (special.byte_zero) special.suffix_ids = {0};
  validate(
      !special.suffix_ids.empty(),
      "the tokenizer '{}' has no end-of-text token, which JSONL documents need; set eos_token in "
      "the tokenizer_config.json of its folder",
      name);
  special.eos = tokenizer.eos().value_or(special.suffix_ids.back());
  return special;
}

EncodedDocument encode(const tokenizer::Tokenizer& tokenizer, const DocumentTokens& special,
                       const Document& document, const LineNumber& where) {
  EncodedDocument encoded{special.prefix_ids, {}};
  auto& ids = encoded.ids;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < document.segments.size(); ++i) {
    const TextSegment& segment = document.segments[i];
    validate(!special.byte_zero || segment.text.find('\0') == std::string::npos,
             "{}: contains byte 0, with which the byte tokenizer ends documents; remove it", where);
    tokenizer.encode(segment.text,
                     i == 0 ? tokenizer::Chunk::first : tokenizer::Chunk::continuation, ids);
    if (i + 1 == document.segments.size())
      ids.insert(ids.end(), special.suffix_ids.begin(), special.suffix_ids.end());
    else if (segment.eos_follows)
      ids.push_back(special.eos);
    if (!segment.in_loss) {
      encoded.masked_ranges.push_back(static_cast<std::int64_t>(begin));
      encoded.masked_ranges.push_back(static_cast<std::int64_t>(ids.size()));
    }
    begin = ids.size();
  }
  return encoded;
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
          const Document document = parse_jsonl(job.record, job.where);
          job.document = encode(tokenizer, special, document, job.where);
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
      sink(job.document, job.record, job.where);
    }
  }
}

}  // namespace llamesh::data
