#include "data/pair_records.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "data/record_fields.hpp"

namespace llamesh::data {
namespace {

using Answers = std::array<RecordFields, 2>;

constexpr std::array<std::string_view, 2> names{"chosen", "rejected"};

bool are_equal(const MessageFields& a, const MessageFields& b) {
  return a.role == b.role && a.content == b.content;
}

void refuse_equal(const LineNumber& where) {
  fail(ExitCode::bad_input, "{}: 'chosen' and 'rejected' are equal; remove the record", where);
}

/// Returns the prompt in a transcript, which the marker of the last answer ends.
std::string prompt_in(const std::string& transcript, std::string_view name,
                      const LineNumber& where) {
  constexpr std::string_view marker = "\n\nAssistant:";
  const auto at = transcript.rfind(marker);
  validate(at != transcript.npos,
           "{}: has no 'prompt', and '{}' no \"\\n\\nAssistant:\" before its answer; write the "
           "prompt as a field of its own",
           where, name);
  return transcript.substr(0, at + marker.size());
}

Answers pair_of_texts(RecordFields& fields, const LineNumber& where) {
  std::array<std::string, 2> texts{std::move(*fields.chosen), std::move(*fields.rejected)};
  if (texts[0] == texts[1]) refuse_equal(where);
  if (!fields.prompt) {
    fields.prompt = prompt_in(texts[0], names[0], where);
    validate(prompt_in(texts[1], names[1], where) == *fields.prompt,
             "{}: 'chosen' and 'rejected' differ before their last answers, so they have no common "
             "prompt; remove the record",
             where);
    for (auto& text : texts) text.erase(0, fields.prompt->size());
  }
  Answers answers;
  for (const std::size_t i : {0, 1}) {
    validate(!texts[i].empty(), "{}: '{}' has an empty answer; remove the record", where, names[i]);
    answers[i].prompt = fields.prompt;
    answers[i].completion = std::move(texts[i]);
  }
  return answers;
}

/// Takes the turns that both conversations share out of the loss.
void leave_prompt_out(Messages& chosen, Messages& rejected, const LineNumber& where) {
  const auto shared = static_cast<std::size_t>(
      std::ranges::mismatch(chosen, rejected, are_equal).in1 - chosen.begin());
  if (shared == chosen.size() && shared == rejected.size()) refuse_equal(where);
  validate(
      shared > 0,
      "{}: 'chosen' and 'rejected' have no first message in common; write whole conversations, "
      "or 'prompt' as a list of messages, too",
      where);
  for (const auto& [messages, name] :
       {std::pair(&chosen, names[0]), std::pair(&rejected, names[1])}) {
    validate(messages->size() > shared, "{}: '{}' has an empty answer; remove the record", where,
             name);
    for (std::size_t i = 0; i < shared; ++i)
      if (*(*messages)[i].role == "assistant") (*messages)[i].in_loss = false;
  }
}

Answers pair_of_conversations(RecordFields& fields, const LineNumber& where) {
  Answers answers;
  std::array lists{std::move(*fields.chosen_messages), std::move(*fields.rejected_messages)};
  const std::array keys{fields.chosen_key, fields.rejected_key};
  if (fields.prompt_messages) {
    if (std::ranges::equal(lists[0], lists[1], are_equal)) refuse_equal(where);
  } else {
    leave_prompt_out(lists[0], lists[1], where);
  }
  for (const std::size_t i : {0, 1}) {
    auto& answer = answers[i];
    answer.system = fields.system;
    if (fields.prompt_messages) {
      validate(!lists[i].empty(), "{}: '{}' has an empty answer; remove the record", where,
               names[i]);
      answer.prompt_messages = fields.prompt_messages;
      answer.prompt_key = fields.prompt_key;
      answer.completion_messages = std::move(lists[i]);
      answer.completion_key = keys[i];
    } else {
      answer.messages = std::move(lists[i]);
      answer.messages_key = keys[i];
    }
  }
  return answers;
}

}  // namespace

std::array<Document, 2> parse_pair(std::string_view record, const LineNumber& where,
                                   const ConversationOptions& options) {
  RecordFields fields = read_fields(record, where, options);
  const bool has_texts = fields.chosen && fields.rejected;
  validate(has_texts || (fields.chosen_messages && fields.rejected_messages),
           "{}: has no 'chosen' and 'rejected' that are both texts or both lists of messages; if "
           "they have other names, give these in data.columns",
           where);
  validate(fields.unread.empty(), "{}: has '{}'; {}", where, fields.unread, fields.advice);
  auto answers = has_texts ? pair_of_texts(fields, where) : pair_of_conversations(fields, where);
  std::array<Document, 2> documents;
  for (const std::size_t i : {0, 1}) {
    documents[i] = document_from(std::move(answers[i]), record, where, options);
    documents[i].form = has_texts ? "a pair of texts" : "a pair of conversations";
  }
  return documents;
}

}  // namespace llamesh::data
